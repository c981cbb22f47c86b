// Text that others wrote (models, prompts, file names), made safe for where it goes. Bytes that are not UTF-8 become
// U+FFFD; control characters are spelled out, so that nothing hidden acts on a terminal, a browser or gnuplot.
#pragma once

#include <string>
#include <string_view>

namespace stet::report {

/// For HTML, between tags and in quoted attributes. Line feeds and tabs pass only with `keep_layout`.
std::string html_of(std::string_view text, bool keep_layout = false);

/// One line of plain, valid UTF-8.
std::string line_of(std::string_view text);

/// Of UTF-8, by code points.
std::size_t width_of(std::string_view text);

}  // namespace stet::report
