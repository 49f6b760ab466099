#include "distributed/logbook.h"

#include <ATen/core/TensorBody.h>
#include <accelerate/core/error.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace accelerate {
namespace {

/// The end of a text that does not fit: of a path, the file is what matters.
template <size_t Size>
void copy_end(std::array<char, Size>& into, const char* text, size_t length) {
  const size_t kept = std::min(length, Size - 1);
  std::memcpy(into.data(), text + (length - kept), kept);
  into[kept] = '\0';
}

int new_memory() {
  const int descriptor = ::memfd_create("accelerate logbook", MFD_CLOEXEC);
  if (descriptor < 0 || ::ftruncate(descriptor, sizeof(LogbookPage)) != 0) {
    if (descriptor >= 0) ::close(descriptor);
    throw DistributedError(std::string("No memory could be made for the notes about calls: ") + std::strerror(errno) + ".");
  }
  return descriptor;
}

LogbookPage* map(int descriptor) {
  void* memory = ::mmap(nullptr, sizeof(LogbookPage), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<LogbookPage*>(memory);
}

/// Not owned: a thread outlives the groups it makes.
std::weak_ptr<Logbook>& logbook_of_thread() {
  thread_local std::weak_ptr<Logbook> logbook;
  return logbook;
}

}  // namespace

Busy::Busy(const char* name, const std::string& place) : logbook_(logbook_of_thread().lock()) {
  if (logbook_) logbook_->begin_activity(name, place);
}

Busy::~Busy() {
  if (logbook_) logbook_->end_activity();
}

void Busy::belongs_to(const std::shared_ptr<Logbook>& logbook) { logbook_of_thread() = logbook; }

int64_t logbook_now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

Logbook::Logbook() : Logbook(new_memory()) {
  if (page_ == nullptr) {
    throw DistributedError(std::string("The memory for the notes about calls cannot be mapped: ") + std::strerror(errno) + ".");
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

int64_t Logbook::enter(const char* call, std::source_location where, const at::Tensor* tensor) {
  Call entry;
  copy_end(entry.name, call, std::strlen(call));
  copy_end(entry.file, where.file_name(), std::strlen(where.file_name()));
  entry.line = static_cast<int32_t>(where.line());
  if (tensor != nullptr) {
    entry.dtype = static_cast<int16_t>(tensor->scalar_type());
    entry.dimensions = static_cast<int16_t>(tensor->dim());
    const auto sizes = tensor->sizes();
    std::copy_n(sizes.begin(), std::min(sizes.size(), entry.shape.size()), entry.shape.begin());
  }
  entry.began = logbook_now();
  const std::lock_guard lock(writing_);
  entry.number = page_->calls.load(std::memory_order_relaxed) + 1;
  page_->ring[static_cast<size_t>(entry.number) % LogbookPage::kCalls].store(entry);
  page_->calls.store(entry.number, std::memory_order_release);
  return entry.number;
}

void Logbook::leave(int64_t number) {
  const std::lock_guard lock(writing_);
  auto& slot = page_->ring[static_cast<size_t>(number) % LogbookPage::kCalls];
  auto entry = slot.load();
  if (!entry || entry->number != number) return;  // other threads of this rank have made so many calls since
  entry->ended = logbook_now();
  slot.store(*entry);
}

void Logbook::skip_to(int64_t number) {
  const std::lock_guard lock(writing_);
  page_->calls.store(number, std::memory_order_release);
}

void Logbook::begin_activity(const char* name, const std::string& place) {
  Activity activity;
  activity.began = logbook_now();
  copy_end(activity.name, name, std::strlen(name));
  copy_end(activity.place, place.data(), place.size());
  const std::lock_guard lock(writing_);
  page_->activity.store(activity);
}

void Logbook::end_activity() {
  const std::lock_guard lock(writing_);
  page_->activity.store({});
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

}  // namespace accelerate
