#include "checkpoint_files/tensor_box.h"

#include <accelerate/core/error.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace accelerate::testing {

using namespace detail;
namespace {

using Shape = std::vector<int64_t>;

/// The flat places of a box's elements, found element by element.
std::vector<uint64_t> places_by_hand(const Shape& shape, const TensorBox& box) {
  std::vector<uint64_t> places;
  for (uint64_t place = 0; place < element_count(shape); ++place) {
    uint64_t rest = place;
    bool inside = true;
    for (size_t i = shape.size(); i-- > 0;) {
      const auto at = static_cast<int64_t>(rest % static_cast<uint64_t>(shape[i]));
      rest /= static_cast<uint64_t>(shape[i]);
      inside = inside && at >= box.offsets[i] && at < box.offsets[i] + box.sizes[i];
    }
    if (inside) places.push_back(place);
  }
  return places;
}

/// The smallest box around [begin, end).
TensorBox box_around(const Shape& shape, uint64_t begin, uint64_t end) {
  TensorBox box{Shape(shape.size(), INT64_MAX), Shape(shape.size(), 0)};
  for (uint64_t place = begin; place < end; ++place) {
    uint64_t rest = place;
    for (size_t i = shape.size(); i-- > 0;) {
      const auto at = static_cast<int64_t>(rest % static_cast<uint64_t>(shape[i]));
      rest /= static_cast<uint64_t>(shape[i]);
      box.offsets[i] = std::min(box.offsets[i], at);
      box.sizes[i] = std::max(box.sizes[i], at + 1);
    }
  }
  for (size_t i = 0; i < shape.size(); ++i) box.sizes[i] -= box.offsets[i];
  return box;
}

/// How many ranges that are boxes [begin, end) has to be cut into, by trying all.
size_t fewest_boxes(const Shape& shape, uint64_t begin, uint64_t end) {
  std::vector<size_t> fewest(end - begin + 1, SIZE_MAX);
  fewest[0] = 0;
  for (uint64_t to = begin + 1; to <= end; ++to) {
    for (uint64_t from = begin; from < to; ++from) {
      if (box_around(shape, from, to).elements() == to - from)
        fewest[to - begin] = std::min(fewest[to - begin], fewest[from - begin] + 1);
    }
  }
  return fewest.back();
}

Shape random_shape(std::mt19937& random, size_t dimensions, int64_t largest) {
  Shape shape;
  for (size_t i = 0; i < dimensions; ++i) shape.push_back(std::uniform_int_distribution<int64_t>(1, largest)(random));
  return shape;
}

TensorBox random_box(std::mt19937& random, const Shape& shape) {
  TensorBox box;
  for (const int64_t size : shape) {
    box.offsets.push_back(std::uniform_int_distribution<int64_t>(0, size - 1)(random));
    box.sizes.push_back(std::uniform_int_distribution<int64_t>(1, size - box.offsets.back())(random));
  }
  return box;
}

/// Cuts the tensor again and again.
std::vector<TensorBox> random_tiling(std::mt19937& random, const Shape& shape, size_t cuts) {
  std::vector<TensorBox> boxes = {{Shape(shape.size(), 0), shape}};
  for (; cuts > 0; --cuts) {
    TensorBox& box = boxes[random() % boxes.size()];
    const size_t along = random() % shape.size();
    if (box.sizes[along] < 2) continue;
    const auto first = std::uniform_int_distribution<int64_t>(1, box.sizes[along] - 1)(random);
    TensorBox rest = box;
    rest.offsets[along] += first;
    rest.sizes[along] -= first;
    box.sizes[along] = first;
    boxes.push_back(rest);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

TEST(TensorBox, ARangeBecomesTheFewestBoxesInTheOrderOfItsElements) {
  std::mt19937 random(1);
  for (size_t round = 0; round < 40; ++round) {
    const Shape shape = random_shape(random, round % 5, round % 5 > 3 ? 2 : 3);
    const uint64_t count = element_count(shape);
    for (uint64_t begin = 0; begin <= count; ++begin) {
      for (uint64_t end = begin; end <= count; ++end) {
        const auto boxes = boxes_of_range(shape, begin, end);
        std::vector<uint64_t> places;
        for (const auto& box : boxes) {
          const auto more = places_by_hand(shape, box);
          places.insert(places.end(), more.begin(), more.end());
        }
        ASSERT_EQ(places.size(), end - begin);
        for (uint64_t i = begin; i < end; ++i) ASSERT_EQ(places[i - begin], i);
        ASSERT_EQ(boxes.size(), fewest_boxes(shape, begin, end)) << begin << " to " << end;
        ASSERT_LE(boxes.size(), shape.empty() ? 1 : 2 * shape.size() - 1);
      }
    }
  }
}

TEST(TensorBox, ARowOfAMatrixThatIsCutInTheMiddleMakesThreeBoxes) {
  EXPECT_EQ(boxes_of_range(Shape{4, 5}, 3, 17), (std::vector<TensorBox>{{{0, 3}, {1, 2}}, {{1, 0}, {2, 5}}, {{3, 0}, {1, 2}}}));
  EXPECT_EQ(boxes_of_range(Shape{}, 0, 1), std::vector<TensorBox>(1));
  EXPECT_TRUE(boxes_of_range(Shape{3, 0}, 0, 0).empty());
  EXPECT_THROW(boxes_of_range(Shape{4, 5}, 3, 21), UsageError);
  EXPECT_THROW(boxes_of_range(Shape{4, 5}, 4, 3), UsageError);
}

TEST(TensorBox, ElementsAreCountedAndPlacedAsByHand) {
  std::mt19937 random(2);
  for (size_t round = 0; round < 500; ++round) {
    const Shape shape = random_shape(random, round % 5, 4);
    const TensorBox box = random_box(random, shape);
    const auto places = places_by_hand(shape, box);
    ASSERT_EQ(places.size(), box.elements());
    for (uint64_t index = 0; index <= element_count(shape); ++index) {
      const auto before = std::lower_bound(places.begin(), places.end(), index) - places.begin();
      ASSERT_EQ(elements_before(shape, box, index), static_cast<uint64_t>(before)) << index;
    }
    const uint64_t run = run_length(shape, box);
    ASSERT_EQ(places.size() % run, 0u);
    for (uint64_t i = 0; i < places.size(); ++i) {
      ASSERT_EQ(place_in_tensor(shape, box, i), places[i]);
      ASSERT_TRUE(i % run == 0 || places[i] == places[i - 1] + 1);
    }
    ASSERT_TRUE(run == places.size() || places[run] != places[run - 1] + 1) << "a longer run";
  }
}

TEST(TensorBox, BoxesThatTileATensorAreToldFromThoseThatDoNot) {
  std::mt19937 random(3);
  for (size_t round = 0; round < 300; ++round) {
    const Shape shape = random_shape(random, 1 + round % 4, 6);
    auto boxes = random_tiling(random, shape, round % 9);
    ASSERT_EQ(cover_of(shape, boxes), BoxCover::kExact);
    boxes.push_back({shape, Shape(shape.size(), 0)});  // a rank that has nothing
    ASSERT_EQ(cover_of(shape, boxes), BoxCover::kExact);
    boxes.pop_back();
    auto wrong = boxes;
    wrong.push_back(boxes.front());
    ASSERT_EQ(cover_of(shape, wrong), BoxCover::kOverlap);
    wrong = boxes;
    wrong.pop_back();
    ASSERT_EQ(cover_of(shape, wrong), BoxCover::kHole);
    wrong = boxes;
    ++wrong.front().sizes.front();
    ASSERT_NE(cover_of(shape, wrong), BoxCover::kExact);
    wrong.front().sizes.front() = shape.front() + 1;
    ASSERT_EQ(cover_of(shape, wrong), BoxCover::kOutside);
    wrong.front() = {};
    ASSERT_EQ(cover_of(shape, wrong), BoxCover::kOutside);
  }
}

TEST(TensorBox, AHoleIsSeenWhereAnOverlapHasAsManyElements) {
  const Shape shape = {4, 4};
  const TensorBox left{{0, 0}, {4, 2}}, right{{0, 2}, {4, 2}}, middle{{0, 1}, {4, 2}};
  EXPECT_EQ(cover_of(shape, std::vector{left, right}), BoxCover::kExact);
  EXPECT_EQ(cover_of(shape, std::vector{left, middle}), BoxCover::kOverlap);
  EXPECT_EQ(cover_of(shape, std::vector{left, left}), BoxCover::kOverlap);
  EXPECT_EQ(cover_of(Shape{}, std::vector<TensorBox>{}), BoxCover::kHole);
  EXPECT_EQ(cover_of(Shape{}, std::vector<TensorBox>(1)), BoxCover::kExact);
  EXPECT_EQ(cover_of(Shape{3, 0}, std::vector<TensorBox>{}), BoxCover::kExact);
  // Nobody cuts along nine dimensions but in ranges.
  const Shape deep(9, 2);
  EXPECT_EQ(cover_of(deep, boxes_of_range(deep, 0, 512)), BoxCover::kExact);
  auto ranges = boxes_of_range(deep, 0, 301);
  for (auto& box : boxes_of_range(deep, 301, 512)) ranges.push_back(std::move(box));
  EXPECT_EQ(cover_of(deep, ranges), BoxCover::kExact);
  EXPECT_EQ(cover_of(deep, std::vector<TensorBox>(512, {Shape(9, 0), Shape(9, 1)})), BoxCover::kOverlap);
}

}  // namespace
}  // namespace accelerate::testing
