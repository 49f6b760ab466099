#include "distributed/logbook.h"

#include <ATen/core/TensorBody.h>
#include <accelerate/core/error.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

namespace accelerate::detail {
namespace {

/// The end of a text that does not fit: of a path, the file is what matters.
template <size_t Size>
void copy_end(std::array<char, Size>& into, const char* text, size_t length) {
  const size_t kept = std::min(length, Size - 1);
  std::memcpy(into.data(), text + (length - kept), kept);
  into[kept] = '\0';
}

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15U;
  return hash ^ (hash >> 32U);
}

uint64_t mixed(uint64_t hash, std::string_view text) {
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3U;
  return mixed(hash, text.size());
}

constexpr unsigned kFingerprintBits = 40;

void describe_nesting(std::array<char, 48>& into, const Nesting& nesting, std::optional<size_t> leaf) {
  const int begun = leaf ? std::snprintf(into.data(), into.size(), "tensor %zu of %zu in ", *leaf + 1, nesting.tensors)
                         : std::snprintf(into.data(), into.size(), "nested as ");
  const size_t room = into.size() - static_cast<size_t>(begun), length = nesting.outline.size();
  const bool fits = length < room;
  std::snprintf(into.data() + begun, room, "%.*s%s", static_cast<int>(fits ? length : room - 4), nesting.outline.data(),
                fits ? "" : "...");
}

Call entry_of(const CallNote& call) {
  Call entry;
  copy_end(entry.name, call.name, std::strlen(call.name));
  copy_end(entry.file, call.where.file_name(), std::strlen(call.where.file_name()));
  copy_end(entry.how, call.how.data(), call.how.size());
  entry.line = static_cast<int32_t>(call.where.line());
  uint64_t hash = mixed(mixed(0xCBF29CE484222325U, call.name), call.how);
  if (call.tensor != nullptr) {
    entry.dtype = static_cast<int16_t>(call.tensor->scalar_type());
    entry.dimensions = static_cast<int16_t>(call.tensor->dim());
    const auto sizes = call.tensor->sizes();
    std::copy_n(sizes.begin(), std::min(sizes.size(), entry.shape.size()), entry.shape.begin());
    hash = mixed(hash, static_cast<uint64_t>(entry.dtype) << 32U | static_cast<uint64_t>(entry.dimensions));
    for (const int64_t size : sizes) hash = mixed(hash, static_cast<uint64_t>(size));
  }
  if (call.nesting != nullptr) {
    describe_nesting(entry.nested, *call.nesting, call.leaf);
    hash = mixed(mixed(hash, call.nesting->hash), call.leaf.value_or(call.nesting->tensors));
  }
  if (call.must_agree()) entry.fingerprint = std::max<uint64_t>(1, hash >> (64U - kFingerprintBits));
  return entry;
}

int new_memory() {
  const int descriptor = ::memfd_create("accelerate logbook", MFD_CLOEXEC);
  if (descriptor < 0 || ::ftruncate(descriptor, sizeof(LogbookPage)) != 0) {
    if (descriptor >= 0) ::close(descriptor);
    throw DistributedError(std::string("Cannot create shared memory for the log of collective calls: ") + std::strerror(errno) +
                           ".");
  }
  return descriptor;
}

LogbookPage* map(int descriptor) {
  void* memory = ::mmap(nullptr, sizeof(LogbookPage), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<LogbookPage*>(memory);
}

}  // namespace

Nesting::Nesting(std::string_view how, size_t count) : outline(how), tensors(count), hash(mixed(0xCBF29CE484222325U, how)) {}

Activity Activity::with(const char* name, const std::string& place) {
  Activity activity;
  copy_end(activity.name, name, std::strlen(name));
  copy_end(activity.place, place.data(), place.size());
  return activity;
}

Activity Activity::at(const std::string& name, std::source_location where) {
  Activity activity = with(name.c_str(), where.file_name());
  activity.line = static_cast<int32_t>(where.line());
  return activity;
}

uint64_t mark_of(int64_t number, uint64_t fingerprint) {
  return static_cast<uint64_t>(number) / LogbookPage::kMarks << kFingerprintBits | fingerprint;
}

bool contradict(uint64_t mark, uint64_t other) {
  constexpr uint64_t kFingerprint = (uint64_t{1} << kFingerprintBits) - 1;
  return mark != other && (mark ^ other) <= kFingerprint && (mark & kFingerprint) != 0 && (other & kFingerprint) != 0;
}

int64_t logbook_now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

Logbook::Logbook() : Logbook(new_memory()) {
  if (page_ == nullptr) {
    throw DistributedError(std::string("Cannot map the shared memory of the log of collective calls: ") + std::strerror(errno) +
                           ".");
  }
  new (page_) LogbookPage;  // memory of a new file is zero, which is what a new page holds
  page_->joined = logbook_now();
}

Logbook::Logbook(int descriptor) : descriptor_(descriptor), page_(map(descriptor)) {}

std::unique_ptr<Logbook> Logbook::of_peer(int64_t pid, int descriptor) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return nullptr;
  std::unique_ptr<Logbook> peer(new Logbook(opened));
  return peer->page_ == nullptr ? nullptr : std::move(peer);
}

Logbook::~Logbook() {
  if (page_ != nullptr) ::munmap(page_, sizeof(LogbookPage));
  ::close(descriptor_);
}

int64_t Logbook::write(const CallNote& call, int64_t ended) {
  Call entry = entry_of(call);
  entry.began = logbook_now();
  entry.ended = ended;
  const std::lock_guard lock(writing_);
  entry.number = page_->calls.load(std::memory_order_relaxed) + 1;
  page_->ring[static_cast<size_t>(entry.number) % LogbookPage::kCalls].store(entry);
  page_->calls.store(entry.number, std::memory_order_release);
  // Every rank writes its mark and then reads those of the others. In the one order of all such accesses one of two ranks comes
  // second, and sees the other's.
  page_->marks[static_cast<size_t>(entry.number) % LogbookPage::kMarks].store(mark_of(entry.number, entry.fingerprint),
                                                                              std::memory_order_seq_cst);
  return entry.number;
}

int64_t Logbook::enter(const CallNote& call) { return write(call, 0); }

int64_t Logbook::announce(const CallNote& call) { return write(call, Call::kComputing); }

/// Does nothing when other threads of this rank have made so many calls since that it is no longer there.
template <class Change>
void Logbook::change(int64_t number, Change change) {
  const std::lock_guard lock(writing_);
  auto& slot = page_->ring[static_cast<size_t>(number) % LogbookPage::kCalls];
  auto entry = slot.load();
  if (!entry || entry->number != number) return;
  change(*entry);
  slot.store(*entry);
}

void Logbook::begin_waiting(int64_t number) {
  change(number, [](Call& call) {
    if (call.ended != Call::kComputing) return;
    call.began = logbook_now();
    call.ended = 0;
  });
}

uint64_t Logbook::mark(int64_t number) const { return page_->marks[static_cast<size_t>(number) % LogbookPage::kMarks].load(); }

void Logbook::leave(int64_t number) {
  change(number, [](Call& call) { call.ended = logbook_now(); });
}

void Logbook::skip_to(int64_t number) {
  const std::lock_guard lock(writing_);
  page_->calls.store(number, std::memory_order_release);
}

int64_t Logbook::begin_activity(Activity activity) {
  activity.began = logbook_now();
  const std::lock_guard lock(writing_);
  activities_.emplace_back(++last_activity_, activity);
  page_->activity.store(activity);
  return last_activity_;
}

void Logbook::end_activity(int64_t number) {
  const std::lock_guard lock(writing_);
  std::erase_if(activities_, [number](const auto& activity) { return activity.first == number; });
  page_->activity.store(activities_.empty() ? Activity() : activities_.back().second);
}

void Logbook::end(Ending ending) {
  page_->ended = logbook_now();
  page_->ending = ending;
}

RankEntry Logbook::read() const {
  RankEntry entry;
  entry.ending = page_->ending;
  entry.ended = page_->ended;
  entry.joined = page_->joined;
  if (const auto activity = page_->activity.load(); activity && activity->began != 0) entry.activity = activity;
  const int64_t newest = page_->calls.load(std::memory_order_acquire);
  for (int64_t number = std::max<int64_t>(1, newest - static_cast<int64_t>(LogbookPage::kCalls) + 1); number <= newest;
       ++number) {
    const auto call = page_->ring[static_cast<size_t>(number) % LogbookPage::kCalls].load();
    if (call && call->number == number) entry.calls.push_back(*call);
  }
  entry.read = logbook_now();
  return entry;
}

}  // namespace accelerate::detail
