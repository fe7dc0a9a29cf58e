// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

namespace brim {

Error::Error(ErrorCode code, const std::string& problem, const Remedy& remedy)
    : code_(code),
      problem_(problem),
      remedy_(remedy.text),
      what_(remedy.text.empty() ? problem : problem + "; " + remedy.text) {}

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::internal:
      return 1;
    case ErrorCode::usage:
      return 2;
    case ErrorCode::bad_data:
      return 3;
    case ErrorCode::bad_model:
      return 4;
    case ErrorCode::does_not_fit:
      return 5;
    case ErrorCode::device_lost:
      return 6;
    case ErrorCode::cannot_write:
      return 7;
    case ErrorCode::diverged:
      return 8;
    case ErrorCode::interrupted:
      return 130;
    case ErrorCode::timed_out:
    case ErrorCode::cancelled:
    case ErrorCode::busy:
      return 1;  // only for library and server requests; no command exits with them
  }
  return 1;
}

const char* error_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::internal:
      return "internal error";
    case ErrorCode::usage:
      return "usage";
    case ErrorCode::bad_data:
      return "bad data";
    case ErrorCode::bad_model:
      return "bad model";
    case ErrorCode::does_not_fit:
      return "does not fit";
    case ErrorCode::device_lost:
      return "device lost";
    case ErrorCode::cannot_write:
      return "cannot write";
    case ErrorCode::diverged:
      return "training diverged";
    case ErrorCode::interrupted:
      return "interrupted";
    case ErrorCode::timed_out:
      return "timed out";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::busy:
      return "busy";
  }
  return "internal error";
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw Error(ErrorCode::internal, fmt::format("{}:{}: check failed: {}: {}", file, line, condition, message));
}

}  // namespace brim
