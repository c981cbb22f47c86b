// Files that the user names: prompts to read, results to write.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "stet/result.hpp"

namespace stet::cli {

/// All bytes of a file, pipe or device; "-" is stdin. At most 256 MiB: a larger input, or one that never ends, is
/// Code::capacity.
Result<std::string> read_input(const std::string& path);

/// Whether `path` can be created or written, so that a long computation does not end in a refusal.
Result<void> check_writable(const std::string& path);

/// Writes the parts one after the other; "-" is stdout. A regular file appears at once and complete, or stays as it
/// was: the bytes go to a temporary file beside it that is then renamed. A device or pipe is written directly.
Result<void> write_file(const std::string& path, std::initializer_list<std::string_view> parts);

}  // namespace stet::cli
