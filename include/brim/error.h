// SPDX-License-Identifier: Apache-2.0
// The only error type. Errors that end a call are thrown as Error; errors of single texts are returned with the
// results of the others. Messages name settings in backquotes with their library names: `long_text=truncate`. Each
// interface renders them in its own form: the command line as --long-text truncate, the server as JSON.
#pragma once
#include <exception>
#include <string>

#if defined(__GNUC__)
#define BRIM_API __attribute__((visibility("default")))
#else
#define BRIM_API
#endif

namespace brim {

enum class ErrorCode {
  internal,      // a bug in Brim
  usage,         // invalid settings or arguments
  bad_data,      // input rows, labels, encodings
  bad_model,     // model directory, weights, tokenizer, config
  does_not_fit,  // no plan under the limit
  device_lost,   // a kernel or the driver failed
  cannot_write,  // unwritable, disk full
  diverged,      // training loss is not a number
  interrupted,   // stopped by a signal, state saved
  timed_out,     // the deadline passed before the work started
  cancelled,     // withdrawn by the caller, or the scorer was closed
  busy,          // rejected: too much is waiting
};

// Suggested fix. Empty if no setting of the caller would help.
struct Remedy {
  std::string text;  // "set `long_text=truncate` or `long_text=window-mean`"
};

// Copies share no state, so that each thread may hold and destroy its own. (Copies of a std::runtime_error share their
// string.)
class BRIM_API Error : public std::exception {
 public:
  Error(ErrorCode code, const std::string& problem, const Remedy& remedy = {});
  // The problem, followed by a semicolon and the remedy, if any.
  const char* what() const noexcept override { return what_.c_str(); }
  ErrorCode code() const { return code_; }
  const std::string& problem() const { return problem_; }
  const std::string& remedy() const { return remedy_; }

 private:
  ErrorCode code_;
  std::string problem_, remedy_, what_;
};

}  // namespace brim
