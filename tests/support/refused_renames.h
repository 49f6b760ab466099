#pragma once

/// While it lives, the rename that comes after `more` others is refused (EIO), and those after it are not.
class RefusedRename {
 public:
  explicit RefusedRename(int more);
  ~RefusedRename();
  RefusedRename(const RefusedRename&) = delete;
  RefusedRename& operator=(const RefusedRename&) = delete;
};
