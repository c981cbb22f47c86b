// Text out of files that nobody vouches for, made fit for one line of an error.
#pragma once

#include <string>
#include <string_view>

namespace stet::weights {

/// `text` with every byte that is not printable ASCII as \xNN, cut with "..." after 120 characters.
std::string printable(std::string_view text);

}  // namespace stet::weights
