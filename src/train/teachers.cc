// SPDX-License-Identifier: Apache-2.0
#include "train/teachers.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/units.h"
#include "text/tokenizer.h"

namespace brim::train {
namespace {

// Case, accents, numbers, signs, emoji and scripts without spaces: cases in which tokenizers with the same vocabulary
// differ.
constexpr const char* kProbes[] = {"The QUICK brown foxes' naïve café costs 3.14 €, doesn't it?!",
                                   "@user #Brim:  https://example.org/a_b?c=1 \U0001F602\U0001F44D soooo gooood :-)",
                                   "Tiếng Việt có dấu; 東京都に住む; Привет, мир"};

// Tokens from the vocabulary, unchanged and in upper case.
std::string some_tokens(const text::Tokenizer& tokenizer) {
  constexpr int32_t kSome = 16;
  std::string out;
  for (int32_t i = 0; i < kSome; ++i) {
    std::string token =
        tokenizer.token(static_cast<int32_t>(int64_t{tokenizer.vocab_size()} * (2 * i + 1) / (2 * kSome)));
    out += token + " ";
    for (char& c : token) c = static_cast<char>('a' <= c && c <= 'z' ? c - 'a' + 'A' : c);
    out += token + " ";
  }
  return out;
}

// Describes the first difference; empty if both tokenizers produce the same ids for all probes.
std::string difference(const text::Tokenizer& teacher, const text::Tokenizer& student) {
  const auto same = [](std::span<const int32_t> a, std::span<const int32_t> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  if (teacher.vocab_size() != student.vocab_size())
    return fmt::format("its vocabulary has {} entries, the student's {}", teacher.vocab_size(), student.vocab_size());
  for (int32_t id = 0; id < student.vocab_size(); ++id)
    if (teacher.token(id) != student.token(id))
      return fmt::format("its token {} is '{}', the student's '{}'", id, teacher.token(id), student.token(id));
  if (!same(teacher.prefix(), student.prefix()) || !same(teacher.suffix(), student.suffix()))
    return "it adds different special tokens";
  std::vector<std::string> probes(std::begin(kProbes), std::end(kProbes));
  probes.push_back(some_tokens(student));
  std::vector<int32_t> a, b;
  for (const std::string& probe : probes) {
    a.clear();
    b.clear();
    teacher.encode_ids(probe, a);
    student.encode_ids(probe, b);
    if (a != b) return fmt::format("it tokenizes \"{}\" differently", probe);
  }
  const auto parts = [](const text::PairTemplate& p) {
    return std::tie(p.before, p.between, p.after, p.first_type, p.second_type);
  };
  if (teacher.pair() && student.pair() && parts(*teacher.pair()) != parts(*student.pair()))
    return "it encodes pairs differently";
  return "";
}

void check_teacher(const TrainJob& job, const std::string& dir) {
  const model::ModelShape shape = model::read_shape(dir);
  if (const auto labels = hub::load_hf_config(dir).id2label; labels != job.labels.sequence)
    fail(ErrorCode::bad_model, "{}: the teacher's labels are {}, the student's {}; names and order must match", dir,
         some_of(labels), some_of(job.labels.sequence));
  if (shape.multi_label != job.shape.multi_label)
    fail(ErrorCode::bad_model, "{}: the teacher predicts {}, the student {}", dir,
         shape.multi_label ? "any number of labels per text" : "one label per text",
         job.shape.multi_label ? "any number" : "one");
  if (shape.vocab != job.shape.vocab || shape.position_offset != job.shape.position_offset)
    fail(
        ErrorCode::bad_model,
        "{}: teacher and student have different vocabularies or positions ({} tokens from position {}, and {} from {})",
        dir, shape.vocab, shape.position_offset, job.shape.vocab, job.shape.position_offset);
  if (shape.max_tokens() < job.max_length)
    fail(ErrorCode::bad_model, Remedy{fmt::format("set `max_length={}`", shape.max_tokens())},
         "{}: the teacher supports {} tokens, the student's texts have up to {}", dir, shape.max_tokens(),
         job.max_length);
  const auto tokenizer = text::Tokenizer::load(dir);
  if (const std::string why = difference(*tokenizer, *job.tokenizer); !why.empty())
    fail(ErrorCode::bad_model, "{}: the teacher's tokenizer differs from the student's: {}", dir, why);
  if (!job.settings.pair_column.empty())
    if (auto problem = text::why_no_pairs(*tokenizer, dir, shape.types, job.max_length)) throw *problem;
}

}  // namespace

void check_teachers(const TrainJob& job) {
  for (const std::string& dir : job.settings.teachers) check_teacher(job, dir);
}

std::string teaching_text(const TrainJob& job) {
  const size_t n = job.settings.teachers.size();
  const std::string teachers = n == 1 ? "the teacher" : fmt::format("{} teachers", n);
  int64_t labelled = 0;  // rows of this task only
  for (const int32_t label : job.train_set.label) labelled += label >= 0;
  std::string text;
  if (labelled > 0)
    text = fmt::format("{} trained on labels ({:.3g}) and {} ({:.3g})", format_count(labelled, "row"),
                       job.settings.hard_weight, teachers, 1 - job.settings.hard_weight);
  if (job.unlabelled > 0)
    text += fmt::format("{}{} without a label trained on {} only", text.empty() ? "" : " · ",
                        format_count(job.unlabelled, "row"), teachers);
  return text;
}

Teachers::Teachers(TrainJob& job) {
  std::vector<model::ModelShape> shapes;
  for (const std::string& dir : job.settings.teachers) {
    models_.push_back(
        model::Model::load(dir, *job.device, model::pass_precision(job.precision, job.device->kind()), &job.memory));
    shapes.push_back(models_.back()->shape());
  }
  plan_ = plan_teachers(shapes, job.precision, job.device->kind(), device::best_isa(), job.threads, job.plan.limits());
}

tensor::TensorView Teachers::run(device::Stream& stream, const ops::BatchView& batch) {
  if (runners_.empty()) {
    ThreadPool* pool =
        stream.kind() == device::DeviceKind::cpu ? static_cast<device::CpuStream&>(stream).pool() : nullptr;
    for (size_t i = 0; i < models_.size(); ++i)
      runners_.push_back(std::make_unique<model::ForwardRunner>(models_[i]->shape(), models_[i]->weights(),
                                                                plan_.passes[i], arena_, pool));
  }
  const auto n = static_cast<int64_t>(models_.size()), K = models_[0]->shape().sequence_classes;
  const tensor::TensorView all(arena_ + plan_.pass_bytes, tensor::DType::f32, {n * batch.B, K});
  for (int64_t i = 0; i < n; ++i) {
    const tensor::TensorView logits = runners_[static_cast<size_t>(i)]->run(stream, batch);
    stream.copy(all.slice_rows(i * batch.B, (i + 1) * batch.B).data, logits.data, static_cast<size_t>(logits.bytes()));
  }
  return all;
}

}  // namespace brim::train
