#include "rendezvous/refused_ranks.h"

#include "console/screen.h"
#include "core/escaped.h"

namespace accelerate::detail {
namespace {

constexpr const char* kRefusals = "refused";
constexpr const char* kRefusalsTold = "refused/told";
/// Anyone who can reach the store can write there: only a limited part is shown.
constexpr int64_t kMostRefusals = 20;
constexpr size_t kLongestRefusal = 1500;

std::string refusal_key(int64_t number) { return std::string(kRefusals) + "/" + std::to_string(number); }

}  // namespace

void publish_refusal(c10d::Store& store, const std::string& text) {
  store.set(refusal_key(store.add(kRefusals, 1)), std::vector<uint8_t>(text.begin(), text.end()));
}

void tell_refusals(c10d::Store& store) {
  const int64_t last = std::min(store.add(kRefusals, 0), kMostRefusals);
  int64_t told = last == 0 ? 0 : store.add(kRefusalsTold, 0);
  // A number is there before its text.
  while (told < last && store.check({refusal_key(told + 1)})) {
    const auto bytes = store.get(refusal_key(told + 1));
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    Screen::of_process().write_line(2, "accelerate: " + escaped(text, kLongestRefusal));
    told = store.add(kRefusalsTold, 1);
  }
}

}  // namespace accelerate::detail
