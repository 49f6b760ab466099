// Bytes that are copied from where the system has a file in memory, and pages that cannot be had.
#include "residency/cached_pages.h"

#include <accelerate/accelerate.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/together.h"

namespace {

using accelerate::detail::CachedPages;

const auto kPage = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));

/// What a signal does, put back at the end.
class SignalAction {
 public:
  SignalAction(int signal, void (*handler)(int)) : signal_(signal) {
    struct sigaction action {};
    action.sa_handler = handler;
    sigaction(signal_, &action, &before_);
  }
  ~SignalAction() { sigaction(signal_, &before_, nullptr); }

 private:
  int signal_;
  struct sigaction before_ {};
};

/// A file of several thousand pages, the last of them not whole, all in memory.
struct File {
  File() : bytes(2500 * kPage + 1234) {
    std::iota(bytes.begin(), bytes.end(), 0);
    for (uint64_t i = 0; i < bytes.size(); i += kPage) bytes[i] = static_cast<char>(i / kPage);
    write();
  }
  ~File() { close(descriptor); }

  void write() const { ASSERT_EQ(pwrite(descriptor, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size())); }

  TemporaryFolder folder;
  std::vector<char> bytes;
  int descriptor = open((folder / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
};

/// How a process ends that does this.
int status_of(const std::function<void()>& does) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    does();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

/// Signals are nobody's at the beginning of each test, also where a sanitizer handles them.
struct CachedPagesTest : ::testing::Test {
  SignalAction nobodys{SIGBUS, SIG_DFL};
  File file;
  CachedPages pages{file.descriptor, file.bytes.size()};
  std::vector<char> to = std::vector<char>(file.bytes.size() + 64);
};

TEST_F(CachedPagesTest, CopiesAnyPartOfAFileToAnyPlace) {
  std::minstd_rand random(1);
  for (int i = 0; i < 200; ++i) {
    const uint64_t offset = random() % file.bytes.size(), place = random() % 64;
    const uint64_t size = i % 2 ? random() % 300 % (file.bytes.size() - offset) : random() % (file.bytes.size() - offset);
    std::fill(to.begin(), to.end(), 'x');
    ASSERT_EQ(pages.copy(to.data() + place, size, offset), size);
    ASSERT_TRUE(std::equal(to.begin() + place, to.begin() + place + size, file.bytes.begin() + offset)) << offset << " " << size;
    ASSERT_EQ(std::count(to.begin(), to.begin() + place, 'x'), place);
    ASSERT_EQ(to[place + size], 'x');
  }
  EXPECT_EQ(pages.copy(to.data(), file.bytes.size(), 0), file.bytes.size());
  EXPECT_TRUE(std::equal(file.bytes.begin(), file.bytes.end(), to.begin()));
}

TEST_F(CachedPagesTest, WhatWouldHaveToComeFromADiskIsNotCopied) {
  const auto in_memory = [&] {
    std::vector<unsigned char> told(file.bytes.size() / kPage + 1);
    void* const mapping = mmap(nullptr, file.bytes.size(), PROT_READ, MAP_SHARED, file.descriptor, 0);
    EXPECT_EQ(mincore(mapping, file.bytes.size(), told.data()), 0);
    munmap(mapping, file.bytes.size());
    return std::all_of(told.begin(), told.end(), [](unsigned char page) { return page & 1; });
  };
  fsync(file.descriptor);
  posix_fadvise(file.descriptor, 0, 0, POSIX_FADV_DONTNEED);  // a file system in memory keeps them all the same
  EXPECT_EQ(pages.copy(to.data(), file.bytes.size(), 0) == file.bytes.size(), in_memory());
  ASSERT_EQ(pread(file.descriptor, to.data(), file.bytes.size(), 0), static_cast<ssize_t>(file.bytes.size()));
  EXPECT_EQ(pages.copy(to.data(), file.bytes.size(), 0), file.bytes.size());
}

TEST_F(CachedPagesTest, AFileThatIsCutMeanwhileEndsNothingButTheCopy) {
  std::atomic<bool> done = false;
  std::atomic<int> partly = 0;
  const auto copy = [&] {
    std::vector<char> mine(file.bytes.size());
    while (!done) partly += pages.copy(mine.data(), mine.size(), 0) < mine.size();
    EXPECT_EQ(pages.copy(mine.data(), mine.size(), 0), mine.size()) << "it goes on when pages can be had again";
    EXPECT_EQ(mine, file.bytes);
  };
  std::thread one(copy), other(copy);
  // Until a copy has met a file that is cut: on a busy machine the threads may not even have started after 40 rounds.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int i = 0; i < 40 || (partly == 0 && std::chrono::steady_clock::now() < deadline); ++i) {
    EXPECT_EQ(ftruncate(file.descriptor, static_cast<off_t>(i % 5 * 500 * kPage)), 0);
    file.write();
  }
  done = true;
  one.join(), other.join();
  EXPECT_GT(partly, 0);
}

TEST_F(CachedPagesTest, WhoHandlesTheSignalKeepsIt) {
  {
    const SignalAction theirs(SIGBUS, [](int) { _exit(3); });
    EXPECT_EQ(pages.copy(to.data(), kPage, 0), 0) << "a page that cannot be had would be theirs";
    struct sigaction now {};
    sigaction(SIGBUS, nullptr, &now);
    EXPECT_FALSE(now.sa_flags & SA_SIGINFO) << "left as it was";
  }
  sigset_t bus, before;
  sigemptyset(&bus), sigaddset(&bus, SIGBUS);
  pthread_sigmask(SIG_BLOCK, &bus, &before);
  EXPECT_EQ(pages.copy(to.data(), kPage, 0), 0) << "a signal that is blocked would end the process";
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(pages.copy(to.data(), kPage, 0), kPage);
  const SignalAction later(SIGBUS, SIG_IGN);
  EXPECT_EQ(pages.copy(to.data(), kPage, 0), 0);
}

TEST_F(CachedPagesTest, OtherBusErrorsEndTheProcessAsEver) {
  ASSERT_EQ(pages.copy(to.data(), kPage, 0), kPage);
  const auto expect_bus_error = [](const std::function<void()>& does) {
    const int status = status_of(does);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) << status;
  };
  expect_bus_error([&] {
    auto* const own = static_cast<volatile char*>(mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file.descriptor, 0));
    if (ftruncate(file.descriptor, 0) != 0) _exit(1);
    _exit(own[0]);
  });
  expect_bus_error([] { raise(SIGBUS); });
}

TEST_F(CachedPagesTest, FilesOfWhichTheSystemTellsNothingAreNotCopied) {
  const int status = status_of([&] {
    // Somebody else's file, which may be read: ours for another user, or the system's for us.
    const bool root = geteuid() == 0;
    const int theirs = root ? file.descriptor : open("/etc/passwd", O_RDONLY);
    if (root && seteuid(65534) != 0) _exit(2);
    CachedPages others(theirs, 100);
    _exit(others.copy(to.data(), 100, 0) == 0 ? 7 : 1);
  });
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST_F(CachedPagesTest, AddressesThatAreFewAreLeftToMemory) {
  const int status = status_of([&] {
    const rlimit few{rlim_t{1} << 46, RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &few);
    _exit(pages.copy(to.data(), kPage, 0) == 0 ? 7 : 1);
  });
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST_F(CachedPagesTest, AnEmptyFileHasNone) {
  ASSERT_EQ(ftruncate(file.descriptor, 0), 0);
  CachedPages none(file.descriptor, 0);
  EXPECT_EQ(none.copy(to.data(), 0, 0), 0);
}

/// What this process has had read so far.
int64_t bytes_read() {
  std::ifstream counts("/proc/self/io");
  std::string name;
  int64_t bytes = -1;
  counts >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

TEST(OffloadedWeights, AreReadPassAfterPassOnlyWhereTheirPagesCannotBeCopied) {
  const SignalAction nobodys(SIGBUS, SIG_DFL);
  const TemporaryFolder folder;
  torch::nn::Linear resident(1024, 4096), layer(1024, 4096);
  accelerate::save_weights(accelerate::state_dict(*resident), folder / "checkpoint");
  auto model = accelerate::load_checkpoint_and_dispatch(layer, folder / "checkpoint", {.device_map = "disk"});
  const torch::NoGradGuard no_grad;
  const auto input = torch::randn({1, 1024});
  const auto answer = resident(input);
  const auto read_in_a_pass = [&] {
    model.release_memory();
    const int64_t before = bytes_read();
    EXPECT_TRUE(torch::equal(model(input), answer));
    return bytes_read() - before;
  };
  const int64_t size = resident->weight.nbytes();
  EXPECT_LT(read_in_a_pass(), size / 10);
  const SignalAction theirs(SIGBUS, SIG_IGN);
  EXPECT_GE(read_in_a_pass(), size);
}

}  // namespace
