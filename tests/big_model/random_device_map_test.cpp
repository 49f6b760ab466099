#include <accelerate/big_model/infer_auto_device_map.h>
#include <accelerate/big_model/tied_parameters.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "big_model/reference_maps.h"
#include "data/random_cases.h"

namespace {

using accelerate::DeviceMap;
using accelerate::MaxMemory;
using reference_maps::Names;

/// A model, limits and options, drawn at random.
class DeviceMapCase {
 public:
  explicit DeviceMapCase(random_cases::Dice& dice) {
    tree_ = draw_module(dice, 0, "");
    const Names order = parameters_;
    for (size_t i = dice.below(3); i > 0; --i) draw_tie(dice);
    // The groups come in the order of the model: which owner is split first depends on it.
    const auto position = [&](const Names& group) {
      return std::find_first_of(order.begin(), order.end(), group.begin(), group.end());
    };
    std::sort(ties_.begin(), ties_.end(), [&](const auto& a, const auto& b) { return position(a) < position(b); });
    const double total = reference_maps::Listing(tree_, ties_).size("");
    for (int gpu = 0; gpu < static_cast<int>(dice.below(4)); ++gpu)
      limits_.emplace_back(std::to_string(gpu), draw_limit(dice, total));
    if (limits_.empty() || dice.coin()) limits_.emplace_back("cpu", draw_limit(dice, total));
    if (dice.coin()) unsplit_.insert("Class" + std::to_string(dice.below(3)));
    fallback_ = dice.coin();
    model_ = described::build(tree_, ties_);
  }

  DeviceMap inferred(bool clean) const {
    accelerate::InferDeviceMapOptions options{
        .no_split_module_classes = {unsplit_.begin(), unsplit_.end()}, .clean_result = clean, .fallback_allocation = fallback_};
    for (const auto& [place, bytes] : limits_) options.max_memory[place] = bytes;
    return accelerate::infer_auto_device_map(*model_, options);
  }

  void check() const {
    const DeviceMap map = inferred(/*clean=*/false), clean = inferred(/*clean=*/true);
    const reference_maps::Listing listing(tree_, ties_);
    const auto expected = reference_maps::Rules(listing, limits_, unsplit_, fallback_).run();
    EXPECT_EQ(as_text(map), expected) << description();
    EXPECT_EQ(as_text(clean), reference_maps::cleaned(expected)) << description();
    check_promises(listing, map, clean);
  }

 private:
  static reference_maps::Map as_text(const DeviceMap& map) {
    reference_maps::Map text;
    for (const auto& [name, place] : map) text[name] = to_string(place);
    return text;
  }

  /// What holds whatever the rules are: every parameter has a place, tied ones the same, no limit is passed, and cleaning
  /// moves nothing.
  void check_promises(const reference_maps::Listing& listing, const DeviceMap& map, const DeviceMap& clean) const {
    std::map<accelerate::Place, double> held;
    for (const auto& own : listing.parameters) {
      for (const auto& name : own.second) {
        EXPECT_TRUE(map.place_of(name).has_value()) << name << description();
        EXPECT_EQ(map.place_of(name), clean.place_of(name)) << name << description();
      }
    }
    for (const auto& group : ties_) {
      for (const auto& name : group) EXPECT_EQ(map.place_of(name), map.place_of(group.front())) << name << description();
    }
    for (const auto& tensor : listing.tensors) {
      if (const auto place = map.place_of(tensor.name)) held[*place] += tensor.bytes;
    }
    for (const auto& [place, bytes] : limits_) EXPECT_LE(held[place], bytes) << place << description();
  }

  static double draw_limit(random_cases::Dice& dice, double total) {
    return std::floor(total * static_cast<double>(dice.below(120)) / 100);
  }

  std::vector<described::Tensor> draw_tensors(random_cases::Dice& dice, const std::string& letter, const std::string& prefix) {
    constexpr std::array dtypes = {at::kFloat, at::kFloat, at::kHalf, at::kLong, at::kBool};
    std::vector<described::Tensor> tensors;
    for (size_t i = dice.below(3); i > 0; --i) {
      tensors.push_back(
          {letter + std::to_string(i), dtypes[dice.below(dtypes.size())], {static_cast<int64_t>(1 + dice.below(20))}});
      if (letter == "p") parameters_.push_back(prefix + tensors.back().name);
    }
    return tensors;
  }

  described::Tree draw_module(random_cases::Dice& dice, int depth, const std::string& prefix) {
    described::Tree tree{.class_name = "Class" + std::to_string(dice.below(4))};
    tree.parameters = draw_tensors(dice, "p", prefix);
    tree.buffers = dice.below(3) == 0 ? draw_tensors(dice, "b", prefix) : std::vector<described::Tensor>{};
    for (size_t i = depth > 3 ? 0 : dice.below(depth == 0 ? 6 : 4); i > 0; --i) {
      const std::string name = std::to_string(i * (dice.coin() ? 1 : 11));  // "1" and "11" must not be mixed up
      const bool taken =
          std::any_of(tree.children.begin(), tree.children.end(), [&](const auto& one) { return one.first == name; });
      if (!taken) tree.children.emplace_back(name, draw_module(dice, depth + 1, prefix + name + "."));
    }
    return tree;
  }

  /// Two or three names that no group has yet; they all get the tensor of the first in the order of building.
  void draw_tie(random_cases::Dice& dice) {
    Names group;
    for (size_t i = 2 + dice.below(2); i > 0 && !parameters_.empty(); --i) {
      const size_t chosen = dice.below(parameters_.size());
      group.push_back(parameters_[chosen]);
      parameters_.erase(parameters_.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
    const auto module_of = [](const std::string& name) { return name.substr(0, name.rfind('.') + 1); };
    std::set<std::string> modules;
    for (const auto& name : group) modules.insert(module_of(name));
    // Within one module Python lists a parameter once, under its first name; that is another claim.
    if (group.size() < 2 || modules.size() < group.size()) return;
    std::sort(group.begin(), group.end());
    ties_.push_back(group);
  }

  std::string description() const {
    std::ostringstream text;
    for (const auto& [place, bytes] : limits_) text << " " << place << ":" << bytes;
    for (const auto& group : ties_) {
      text << " tied";
      for (const auto& name : group) text << " " << name;
    }
    for (const auto& name : unsplit_) text << " unsplit " << name;
    text << (fallback_ ? " fallback" : "") << "\n" << c10::str(*model_);
    return text.str();
  }

  described::Tree tree_;
  Names parameters_;
  std::vector<Names> ties_;
  reference_maps::Limits limits_;
  std::set<std::string> unsplit_;
  bool fallback_ = false;
  std::shared_ptr<described::Model> model_;
};

TEST(RandomDeviceMap, EqualsThatOfTheSlowReference) {
  ::setenv("ACCELERATE_LOG_LEVEL", "error", 1);  // most limits are too small for something
  random_cases::Dice dice(8);
  for (int i = 0; i < random_cases::count(100) && !HasFailure(); ++i) DeviceMapCase(dice).check();
  ::unsetenv("ACCELERATE_LOG_LEVEL");
}

}  // namespace
