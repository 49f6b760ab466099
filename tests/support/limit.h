#pragma once

#include <sys/resource.h>

#include <csignal>

/// A limit of this process (RLIMIT_NOFILE, RLIMIT_FSIZE …), while it lives. What is too large for a file is an error, no signal.
class Limit {
 public:
  Limit(decltype(RLIMIT_NOFILE) kind, rlim_t value) : kind_(kind), handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(kind_, &before_);
    const struct rlimit limit { value, before_.rlim_max };
    setrlimit(kind_, &limit);
  }
  ~Limit() {
    setrlimit(kind_, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  decltype(RLIMIT_NOFILE) kind_;
  void (*handler_)(int);
  struct rlimit before_ {};
};
