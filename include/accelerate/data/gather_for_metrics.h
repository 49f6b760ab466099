#pragma once

#include <accelerate/data/active_loaders.h>
#include <accelerate/distributed/collectives.h>

namespace accelerate {

struct GatherForMetricsOptions {
  /// Send vectors as objects even when they hold tensors, which may then be of different shapes.
  bool use_gather_object = false;
};

namespace detail {

/// How many rows of what all processes gave belong to samples that are counted here for the first time; nothing: all of them.
std::optional<int64_t> first_seen_rows(const ActiveLoaders& loaders);
void keep_rows(const Leaves& leaves, std::optional<int64_t> rows);
Value keep_items(Value list, std::optional<int64_t> rows);
[[noreturn]] void not_in_a_list(const std::string& what);

template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};

}  // namespace detail

/// `gather`, without the samples that only even out the last batch: over a whole loop each sample counts once. Tensors and
/// nested data are joined along the first dimension; a vector of anything else is gathered as a list of objects; the fields
/// of a tuple or struct that has both are gathered each in its own way. Call it within the loop over a prepared loader.
template <class T>
T gather_for_metrics(const ProcessState& state, const ActiveLoaders& loaders, T data, const GatherForMetricsOptions& options = {},
                     std::source_location where = std::source_location::current()) {
  const auto rows = detail::first_seen_rows(loaders);
  std::string other = options.use_gather_object ? "use_gather_object" : "";
  if constexpr (Nested<T>) {
    if (!options.use_gather_object) {
      auto leaves = detail::leaves_of(data);
      other = leaves.other;
      if (other.empty()) {
        detail::gather(state, leaves, where);
        detail::keep_rows(leaves, rows);
        return data;
      }
    }
  }
  if constexpr (std::is_same_v<T, Value>) {
    return detail::keep_items(gather_object(state, data, where), rows);
  } else if constexpr (detail::is_vector<T>::value) {
    T all = gather_object(state, data, where);
    if (rows && static_cast<size_t>(*rows) < all.size()) all.erase(all.begin() + *rows, all.end());
    return all;
  } else if constexpr (detail::TupleLike<T>) {
    std::apply([&](auto&... items) { ((items = gather_for_metrics(state, loaders, std::move(items), options, where)), ...); },
               data);
    return data;
  } else if constexpr (detail::PlainStruct<T>) {
    detail::for_each_field(data,
                           [&](auto& field) { field = gather_for_metrics(state, loaders, std::move(field), options, where); });
    return data;
  } else {
    constexpr bool in_no_list = std::is_arithmetic_v<T> || detail::TextLike<T> || detail::is_opaque<T>();
    static_assert(!in_no_list,
                  "gather_for_metrics takes tensors, and numbers, text or objects in a std::vector, one for each sample; "
                  "a struct of these has no constructors");
    detail::not_in_a_list(other);
  }
}

}  // namespace accelerate
