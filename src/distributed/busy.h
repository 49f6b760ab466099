#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distributed/logbook.h"

namespace accelerate::detail {

using Logbooks = std::vector<std::shared_ptr<Logbook>>;

/// While it lives, the call logs of a rank say that it is busy with something other than a collective.
class Busy {
 public:
  /// In the logs of all groups that this thread has made.
  Busy(const char* name, const std::string& place);
  Busy(const Activity& activity, const Logbooks& logbooks);
  ~Busy();
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

  /// From now on this thread is also that of the rank that writes `logbook`.
  static void belongs_to(const std::shared_ptr<Logbook>& logbook);
  /// The logs of all groups that this thread has made, but for `own`.
  static Logbooks logbooks_beside(const Logbook* own);

 private:
  std::vector<std::pair<std::shared_ptr<Logbook>, int64_t>> noted_;
};

}  // namespace accelerate::detail
