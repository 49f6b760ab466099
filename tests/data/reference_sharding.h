#pragma once

#include <accelerate/data/sampler.h>

#include <algorithm>

/// Which process gets which sample, once more: on whole lists, by the rules and not by the program. Slow and obvious.
namespace reference {

using List = accelerate::Indices;
using Lists = std::vector<List>;

/// The list, made as long as the next multiple of `length` with its own first `head` elements, repeated as often as it takes.
template <class T>
std::vector<T> filled_up(std::vector<T> list, size_t length, size_t head) {
  const std::vector<T> beginning(list.begin(), list.begin() + static_cast<ptrdiff_t>(std::min(head, list.size())));
  for (size_t i = 0; list.size() % length != 0; ++i) list.push_back(beginning[i % beginning.size()]);
  return list;
}

/// The list without what is beyond the last multiple of `length`.
template <class T>
std::vector<T> cut(std::vector<T> list, size_t length) {
  list.resize(list.size() / length * length);
  return list;
}

/// The list in pieces of `length`, the last of which may be shorter.
inline Lists pieces(const List& list, size_t length) {
  Lists result;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i % length == 0) result.emplace_back();
    result.back().push_back(list[i]);
  }
  return result;
}

/// Every `processes`-th piece, from that of `process` on.
template <class T>
std::vector<T> dealt(const std::vector<T>& list, size_t processes, size_t process) {
  std::vector<T> result;
  for (size_t i = process; i < list.size(); i += processes) result.push_back(list[i]);
  return result;
}

struct ShardingConfig {
  size_t batch_size, processes, process;
  bool split, drop_last, even;
};

/// Batches of one length: a step of all processes takes `step` samples. Where all are to have the same, whole steps are made
/// first, and dealt out then.
inline Lists shard(const List& samples, const ShardingConfig& s) {
  const size_t step = s.split ? s.batch_size : s.batch_size * s.processes, share = step / s.processes;
  if (s.drop_last) return dealt(pieces(cut(samples, step), share), s.processes, s.process);
  if (s.even) return dealt(pieces(filled_up(samples, step, step), share), s.processes, s.process);
  return dealt(pieces(samples, share), s.processes, s.process);
}

/// Batches of any length: where all are to have the same number, whole rounds are made of them first.
inline Lists shard_ragged(const Lists& batches, const ShardingConfig& s) {
  const Lists rounds = s.drop_last ? cut(batches, s.processes) : s.even ? filled_up(batches, s.processes, s.processes) : batches;
  return dealt(rounds, s.processes, s.process);
}

/// A stream: as batches of one length, joined again; it is always evened out.
inline List shard_stream(const List& samples, ShardingConfig s) {
  s.even = true;
  List result;
  for (const List& piece : shard(samples, s)) result.insert(result.end(), piece.begin(), piece.end());
  return result;
}

/// Dispatched batches: those of as many as are read for a step are joined, and every process gets an equal part of the rows.
/// Where the last rows cannot be divided the parts are one longer, and as many of the first step's follow as there are processes,
/// again and again where those are too few.
struct Dispatched {
  Lists batches;
  size_t rows_of_last_step = 0;
};
inline Dispatched dispatch(const Lists& read, const ShardingConfig& s) {
  const size_t at_once = s.split ? 1 : s.processes;
  Lists steps;
  for (size_t i = 0; i < (s.drop_last ? cut(read, at_once) : read).size(); ++i) {
    if (i % at_once == 0) steps.emplace_back();
    steps.back().insert(steps.back().end(), read[i].begin(), read[i].end());
  }
  if (steps.empty()) return {};
  Dispatched result{.batches = {}, .rows_of_last_step = steps.back().size()};
  const List first(steps[0].begin(), steps[0].begin() + static_cast<ptrdiff_t>(std::min(s.processes, steps[0].size())));
  const bool uneven = steps.back().size() % s.processes != 0;
  const size_t needed = (result.rows_of_last_step / s.processes + 1) * s.processes;
  while (uneven && steps.back().size() < needed) steps.back().insert(steps.back().end(), first.begin(), first.end());
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool longer = uneven && i + 1 == steps.size();
    const size_t rows = longer ? result.rows_of_last_step / s.processes + 1 : steps[i].size() / s.processes;
    const Lists parts = pieces(steps[i], rows);
    result.batches.push_back(s.process < parts.size() ? parts[s.process] : List());
  }
  return result;
}

/// How many batches Python says a process gets.
inline size_t shard_length(size_t batches, const ShardingConfig& s) {
  if (s.split) return batches;
  if (s.drop_last) return batches / s.processes;
  if (s.even) return (batches + s.processes - 1) / s.processes;
  return dealt(List(batches), s.processes, s.process).size();
}

/// How many samples Python says a process gets of a stream, which it counts as if batches were not split.
inline size_t stream_length(size_t samples, ShardingConfig s) {
  s.split = false;
  return shard_stream(List(samples), s).size();
}

}  // namespace reference
