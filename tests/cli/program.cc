// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>

namespace brim {
namespace fs = std::filesystem;
namespace {

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_all(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

// A clean environment, independent of this machine's settings.
std::vector<std::string> environment_of(const fs::path& folder, const Surroundings& around) {
  std::vector<std::string> all;
  for (const auto& [name, value] : around.environment)
    all.push_back(name + "=" + value);  // the first definition of a name applies
  all.insert(all.end(), {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + folder.string(), "BRIM_HOME=" BRIM_SOURCE_DIR});
  return all;
}

int opened(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) throw std::runtime_error("cannot open " + path.string());
  return fd;
}

void set_limit(int resource, int64_t bytes) {
  const struct rlimit limit { static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes) };
  if (bytes >= 0) ::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

}  // namespace

Running::Running(const fs::path& folder, const std::vector<std::string>& arguments, const Surroundings& around) {
  static int count = 0;
  const fs::path streams = folder / fmt::format(".streams.{}", ++count);
  const fs::path out_path =
      around.stdout_path.empty() ? fs::path(streams.string() + ".out") : fs::path(around.stdout_path);
  if (around.stdout_path.empty()) out_ = out_path;
  err_ = streams.string() + ".err";
  int in = -1;
  if (around.feed) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    in = ends[0];
    feed_fd_ = ends[1];
    feed_ = around.feed;
  } else {
    write_all(streams.string() + ".in", around.input);
    in = opened(streams.string() + ".in", O_RDONLY);
  }
  const int out = opened(out_path, O_WRONLY | O_CREAT | O_TRUNC), err = opened(err_, O_WRONLY | O_CREAT | O_TRUNC);

  std::vector<std::string> words = {"brim"}, variables = environment_of(folder, around);
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv, envp;
  for (auto& word : words) argv.push_back(word.data());
  for (auto& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  ::malloc_trim(0);  // the child's peak includes this process's memory at the fork
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    if (::chdir(folder.c_str()) != 0 || ::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) ::_exit(99);
    set_limit(RLIMIT_FSIZE, around.file_limit);
    set_limit(RLIMIT_AS, around.address_limit);
    ::execve(BRIM_PROGRAM, argv.data(), envp.data());
    ::_exit(98);
  }
  ::close(in), ::close(out), ::close(err);
}

Running::~Running() {
  if (reaped_) return;
  ::kill(pid_, SIGKILL);
  if (feed_fd_ >= 0) ::close(feed_fd_);
  int status = 0;
  ::waitpid(pid_, &status, 0);
}

void Running::signal(int number) const {
  if (!reaped_) ::kill(pid_, number);
}

bool Running::ended() {
  if (reaped_) return true;
  int status = 0;
  struct rusage usage {};
  if (::wait4(pid_, &status, WNOHANG, &usage) != pid_) return false;
  reaped_ = true;
  outcome_.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  outcome_.peak_kib = usage.ru_maxrss;
  return true;
}

bool Running::ends_within(double seconds) {
  for (double waited = 0; !ended() && waited < seconds; waited += 0.001) ::usleep(1000);
  return ended();
}

Outcome Running::wait() {
  if (feed_fd_ >= 0) {
    feed_(feed_fd_);
    ::close(feed_fd_);
    feed_fd_ = -1;
  }
  while (!ended()) ::usleep(500);
  if (!out_.empty()) outcome_.out = read_all(out_);
  outcome_.err = read_all(err_);
  return outcome_;
}

void ProgramTest::SetUp() {
  ::signal(SIGPIPE, SIG_IGN);
  std::string pattern = (fs::temp_directory_path() / "brim_cli_XXXXXX").string();
  folder_ = ::mkdtemp(pattern.data());
  make_model("bert_sequence", "tiny");
}

void ProgramTest::TearDown() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

Outcome ProgramTest::brim(const std::vector<std::string>& arguments, const Surroundings& around) const {
  return Running(folder_, arguments, around).wait();
}

std::string ProgramTest::must(const std::vector<std::string>& arguments, const Surroundings& around) const {
  const Outcome got = brim(arguments, around);
  EXPECT_EQ(got.code, 0) << fmt::format("brim {}\n{}", fmt::join(arguments, " "), got.err);
  return got.out;
}

Outcome ProgramTest::refused(int code, const std::vector<std::string>& parts, const std::vector<std::string>& arguments,
                             const Surroundings& around) const {
  const Outcome got = brim(arguments, around);
  const std::string command = fmt::format("brim {}\n{}", fmt::join(arguments, " "), got.err);
  EXPECT_EQ(got.code, code) << command;
  for (const auto& part : parts)
    EXPECT_NE(got.err.find(part), std::string::npos) << "missing: " << part << "\n" << command;
  return got;
}

fs::path ProgramTest::put(const std::string& name, const std::string& bytes) const {
  write_all(folder_ / name, bytes);
  return folder_ / name;
}

std::string ProgramTest::get(const std::string& name) const {
  EXPECT_TRUE(exists(name)) << name;
  return read_all(folder_ / name);
}

std::string ProgramTest::glimpse(const std::string& name) const { return read_all(folder_ / name); }

std::string ProgramTest::unpacked(const std::string& name) const {
  const std::string tool = name.ends_with(".gz") ? "gzip" : "zstd";
  const fs::path plain = folder_ / ".unpacked";
  const std::string command = fmt::format("{} -q -dc '{}' > '{}'", tool, (folder_ / name).string(), plain.string());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return read_all(plain);
}

void ProgramTest::make_model(const std::string& golden, const std::string& name) const {
  fs::create_directories(folder_ / name);
  for (const char* file : {"config.json", "model.safetensors"})
    write_all(folder_ / name / file, read_all(fs::path(BRIM_SOURCE_DIR) / "tests/data/models" / golden / file));
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int i = 5; i < 96; ++i) vocabulary += fmt::format("w{}\n", i);
  write_all(folder_ / name / "vocab.txt", vocabulary);
}

void ProgramTest::misalign_weights(const std::string& model) const {
  std::string bytes = get(model + "/model.safetensors");
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  bytes.insert(8 + length, " ");
  ++length;
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  put(model + "/model.safetensors", bytes);
}

void ProgramTest::edit_config(const std::string& model, const std::function<void(nlohmann::json&)>& change) const {
  nlohmann::json config = json_of(model + "/config.json");
  change(config);
  put(model + "/config.json", config.dump(2));
}

std::string made_up_lines(size_t rows, unsigned seed, size_t longest) {
  std::mt19937 random(seed);
  std::string text;
  for (size_t row = 0; row < rows; ++row) {
    text += fmt::format("n{}", row);
    for (size_t words = 1 + random() % longest; words > 0; --words) text += fmt::format(" w{}", 5 + random() % 91);
    text += '\n';
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t from = 0; from < text.size();) {
    const size_t end = std::min(text.find('\n', from), text.size());
    lines.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return lines;
}

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> all;
  for (const auto& line : lines_of(text)) all.push_back(nlohmann::json::parse(line));
  return all;
}

}  // namespace brim
