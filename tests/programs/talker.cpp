// Writes as programs of many threads do: lines of any length, in pieces of any length, to stdout and stderr at once.
//   talker lines COUNT   COUNT lines on each stream: "<rank> <stream> <index> <length> xxx", from a seed that is the rank
//   talker bytes COUNT   COUNT bytes on stdout: lines of 64 bytes
//   talker long COUNT    COUNT bytes on stdout: one line
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <string>

namespace {

void write_all(int file_descriptor, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t written = ::write(file_descriptor, bytes, count);
    if (written <= 0) std::_Exit(2);
    bytes += written;
    count -= static_cast<size_t>(written);
  }
}

void talk(int count) {
  const char* rank = std::getenv("RANK");
  std::mt19937 random(static_cast<unsigned>(std::atoi(rank)));
  std::array<std::string, 2> texts;
  for (size_t stream = 0; stream < 2; ++stream) {
    for (int index = 0; index < count; ++index) {
      // Mostly short ones, and some that are longer than what a pipe takes at once.
      const size_t length = random() % (index % 100 == 99 ? 100000 : 200);
      texts[stream] += std::string(rank) + " " + std::to_string(stream + 1) + " " + std::to_string(index) + " " +
                       std::to_string(length) + " " + std::string(length, static_cast<char>('a' + std::atoi(rank))) + "\n";
    }
  }
  for (std::array<size_t, 2> written = {0, 0}; written[0] < texts[0].size() || written[1] < texts[1].size();) {
    const size_t stream = random() % 2;
    const size_t piece = std::min<size_t>(texts[stream].size() - written[stream], random() % 3000);
    write_all(static_cast<int>(stream) + 1, texts[stream].data() + written[stream], piece);
    written[stream] += piece;
  }
}

void flood(size_t count, size_t line) {
  std::string block;
  while (block.size() < 64 * 1024) block += std::string(line - 1, 'x') + (line == 1 ? "x" : "\n");
  for (; count > 0; count -= std::min(count, block.size())) write_all(1, block.data(), std::min(count, block.size()));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc == 3 ? argv[1] : "";
  const long count = argc == 3 ? std::atol(argv[2]) : 0;
  if (kind == "lines") {
    talk(static_cast<int>(count));
  } else if (kind == "bytes") {
    flood(static_cast<size_t>(count), 64);
  } else if (kind == "long") {
    flood(static_cast<size_t>(count), 1);
  } else {
    return 1;
  }
  return 0;
}
