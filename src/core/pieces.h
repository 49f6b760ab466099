#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <vector>

namespace accelerate::detail {

/// A sequence of small values, stored in chunks: it grows at its end without large allocations, and one built from a range has no
/// spare capacity. For data from untrusted files.
template <typename T>
class Pieces {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = const T*;
    using reference = const T&;
    Iterator() = default;
    Iterator(const Pieces* row, size_t at) : row_(row), at_(at) {}
    reference operator*() const { return (*row_)[at_]; }
    pointer operator->() const { return &(*row_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return {row_, at_++}; }
    bool operator==(const Iterator&) const = default;

   private:
    const Pieces* row_ = nullptr;
    size_t at_ = 0;
  };

  Pieces() = default;
  Pieces(std::initializer_list<T> values) : Pieces(values.size(), [&](size_t i) { return values.begin()[i]; }) {}
  /// `count` values, each made by `value(index)`.
  template <typename Value>
  Pieces(size_t count, Value value) {
    grow_first(std::min(count, kPiece));
    for (size_t i = 0; i < count; ++i) push_back(value(i));
  }
  Pieces(const Pieces& other) : Pieces(other.size(), [&](size_t i) { return other[i]; }) {}
  Pieces(Pieces&& other) noexcept { swap(other); }
  Pieces& operator=(Pieces other) noexcept {
    swap(other);
    return *this;
  }
  ~Pieces() = default;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t at) { return at < kPiece ? first_[at] : (*more_)[at / kPiece - 1][at % kPiece]; }
  const T& operator[](size_t at) const { return at < kPiece ? first_[at] : (*more_)[at / kPiece - 1][at % kPiece]; }
  /// The same with a bounds check: std::out_of_range.
  const T& at(size_t place) const {
    if (place >= size_) throw std::out_of_range("Pieces::at");
    return (*this)[place];
  }
  const T& front() const { return (*this)[0]; }
  const T& back() const { return (*this)[size_ - 1]; }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size_}; }

  void push_back(T value) {
    make_room();
    (*this)[size_] = value;
    ++size_;
  }
  template <typename... Parts>
  void emplace_back(Parts... parts) {
    push_back(T(parts...));
  }
  void pop_back() { shrink(size_ - 1); }
  /// Removes the elements from `size` on.
  void shrink(size_t size) {
    size_ = size;
    const size_t pieces = size <= kPiece ? 0 : (size - 1) / kPiece;
    if (more_ && more_->size() > pieces + 1)
      more_->resize(pieces + 1);  // one chunk is kept, in case the end moves back and forth
  }

 private:
  static constexpr size_t kPiece = 512;

  void swap(Pieces& other) noexcept {
    const uint64_t size = size_, capacity = capacity_;
    size_ = other.size_;
    capacity_ = other.capacity_;
    other.size_ = size;
    other.capacity_ = capacity;
    first_.swap(other.first_);
    more_.swap(other.more_);
  }
  void make_room() {
    if (size_ < kPiece) {
      if (size_ == capacity_) grow_first(std::min(kPiece, std::max<size_t>(1, 2 * size_)));
    } else if (const size_t piece = size_ / kPiece; !more_ || more_->size() < piece) {
      if (!more_) more_ = std::make_unique<std::vector<std::unique_ptr<T[]>>>();
      more_->push_back(std::make_unique_for_overwrite<T[]>(kPiece));
    }
  }
  void grow_first(size_t capacity) {
    if (capacity == 0) return;
    auto larger = std::make_unique_for_overwrite<T[]>(capacity);
    for (size_t i = 0; i < size_; ++i) larger[i] = first_[i];
    first_ = std::move(larger);
    capacity_ = capacity;
  }

  uint64_t size_ : 48 = 0, capacity_ : 16 = 0;  // the capacity is that of the first piece, the only one that may be short
  std::unique_ptr<T[]> first_;
  std::unique_ptr<std::vector<std::unique_ptr<T[]>>> more_;
};

}  // namespace accelerate::detail
