// NumPy's file format, version 1.0 (numpy/lib/format.py): a magic string, a Python dict as header, raw values.
#pragma once

#include <string>

#include "stet/engine.hpp"

namespace stet::cli {

/// The header of a C-ordered rows x vocab array, '<f4' or '<f8'; the values follow it as they lie in memory.
std::string npy_header(const Logits& logits);

}  // namespace stet::cli
