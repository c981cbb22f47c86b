// Errors as values. Every call of Stet that can fail returns Result<T>; nothing prints, throws or aborts.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace stet {

enum class Code {
  invalid_argument,  // the caller asked for something that cannot be
  not_found,         // a file, tensor or sequence is missing
  io,                // the system refused to read or write
  corrupt,           // a file's content contradicts itself or its format
  unsupported,       // well formed, but not something Stet does
  capacity,          // it does not fit; need and capacity are named
  exhausted,         // it does not fit now, beside what others hold
  interrupted,       // the caller asked to stop
};

/// What was wrong, where (file, tensor, offset; or sequence and position) and, where it matters, what state remains.
/// The message is one line without a full stop at its end.
struct Error {
  Code code = Code::invalid_argument;
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;

using Failure = tl::unexpected<Error>;

/// `return fail(Code::capacity, "...")` from any function that returns a Result.
inline Failure fail(Code code, std::string message) {
  return Failure(Error{code, std::move(message)});
}

/// `if (!r) return pass(r);` hands the error of one Result on as the error of another.
template <class T>
Failure pass(const Result<T>& failed) {
  return Failure(failed.error());
}

}  // namespace stet
