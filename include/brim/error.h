// SPDX-License-Identifier: Apache-2.0
// The one error type. What ends a call is thrown as Error; what concerns one text is returned beside its neighbours'
// results. A message names settings as the library spells them, in backquotes: `long_text=truncate`. Each door renders
// them in its own way: the command line as --long-text truncate, a server as JSON.
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
  usage,         // settings and arguments
  bad_data,      // input rows, labels, encodings
  bad_model,     // model directory, weights, tokenizer, config
  does_not_fit,  // no plan under the limit
  device_lost,   // a kernel or the driver failed
  cannot_write,  // unwritable, disk full
  diverged,      // training loss is not a number
  interrupted,   // stopped by a signal, state saved
  timed_out,     // the deadline passed before the work began
  cancelled,     // withdrawn by its caller, or the scorer was closed
  busy,          // refused now: too much is waiting
};

// What would help. Empty where nothing a caller can set does.
struct Remedy {
  std::string text;  // "set `long_text=truncate` or `long_text=window-mean`"
};

// Copies share nothing, so that each thread may hold and drop its own. (Copies of a std::runtime_error share their
// words.)
class BRIM_API Error : public std::exception {
 public:
  Error(ErrorCode code, const std::string& problem, const Remedy& remedy = {});
  // The problem and, behind a semicolon, the remedy.
  const char* what() const noexcept override { return what_.c_str(); }
  ErrorCode code() const { return code_; }
  const std::string& problem() const { return problem_; }
  const std::string& remedy() const { return remedy_; }

 private:
  ErrorCode code_;
  std::string problem_, remedy_, what_;
};

}  // namespace brim
