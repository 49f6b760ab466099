#include "job_submission.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/escaped.h"
#include "core/program_path.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

/// What a program wrote, and how it ended.
struct Answer {
  std::string output = {}, errors = {};
  int exit_code = 1;
};

/// A file in memory: a program that writes more than a pipe holds waits for nobody.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& content = "") : descriptor_(::memfd_create("job", MFD_CLOEXEC)) {
    for (size_t done = 0; done < content.size();) {
      const ssize_t wrote = ::write(descriptor_, content.data() + done, content.size() - done);
      if (wrote <= 0) break;
      done += static_cast<size_t>(wrote);
    }
    ::lseek(descriptor_, 0, SEEK_SET);
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::string content() const {
    std::string text;
    std::array<char, 4096> part = {};
    ::lseek(descriptor_, 0, SEEK_SET);
    for (ssize_t got = 0; (got = ::read(descriptor_, part.data(), part.size())) > 0;)
      text.append(part.data(), static_cast<size_t>(got));
    return text;
  }

 private:
  int descriptor_;
};

Answer ask(const std::string& program, std::vector<std::string> words, const std::string& input) {
  const MemoryFile in(input), out, errors;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.descriptor(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out.descriptor(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, errors.descriptor(), STDERR_FILENO);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int problem = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (problem != 0) return {.errors = std::strerror(problem)};
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return {.output = out.content(), .errors = errors.content(), .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1};
}

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

}  // namespace

int submit_job(const std::string& file) {
  const char* path = std::getenv("PATH");
  const ProgramPath sbatch = find_program("sbatch", path != nullptr ? path : "/bin:/usr/bin");
  if (sbatch.exit_code != 0) {
    tell_problem(
        "accelerate launch",
        "--submit needs sbatch, which is not on PATH: run it on a host that submits to Slurm, or print the job file with "
        "--submit --dry_run.");
    return 1;
  }
  const Answer answer = ask(sbatch.path, {"sbatch", "--parsable"}, file);
  if (answer.exit_code != 0) {
    tell_problem("accelerate launch", "sbatch refused the job: " + trimmed(answer.errors));
    return 1;
  }
  // What it says beside, such as the warnings of a site's filters.
  std::fputs(answer.errors.c_str(), stderr);
  const std::string job = trimmed(answer.output);
  std::printf("Submitted batch job %s\n", escaped(job.substr(0, job.find(';'))).c_str());
  return 0;
}

}  // namespace accelerate::detail::cli
