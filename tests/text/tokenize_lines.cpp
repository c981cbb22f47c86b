// Encodes many strings in one process, for tools/reference/tokenizer_compare.py:
//
//     tokenize_lines FOLDER [--special]
//
// Reads strings in hexadecimal, one a line; prints first "unicode VERSION", then for each string its ids with spaces
// between. Every string must come back from its ids, at once and streamed. Exit status 1, with one line on stderr, at
// the first error.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include "stet/tokenizer.hpp"
#include "text/pretokenizer.hpp"

namespace {

std::optional<std::string> from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(hex.data() + i, hex.data() + i + 2, value, 16);
    if (error != std::errc() || end != hex.data() + i + 2) return std::nullopt;
    bytes += static_cast<char>(value);
  }
  if (hex.size() % 2 != 0) return std::nullopt;
  return bytes;
}

int complain(std::string_view what) {
  fmt::print(stderr, "tokenize_lines: {}\n", what);
  return 1;
}

std::string streamed(const stet::Tokenizer& tokenizer, const std::vector<stet::TokenId>& ids) {
  stet::StreamDecoder decoder(tokenizer);
  std::string text;
  for (const stet::TokenId id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

}  // namespace

int main(int argc, char** argv) {
  const bool parse_special = argc == 3 && std::string_view(argv[2]) == "--special";
  if (argc != 2 && !parse_special) return complain("usage: tokenize_lines FOLDER [--special] < LINES");
  const auto tokenizer = stet::Tokenizer::load(argv[1]);
  if (!tokenizer) return complain(tokenizer.error().message);

  std::ios::sync_with_stdio(false);
  std::cout << "unicode " << stet::text::unicode_version() << '\n';
  std::string line;
  for (int number = 1; std::getline(std::cin, line); ++number) {
    const auto text = from_hex(line);
    if (!text) return complain(fmt::format("line {}: not hexadecimal", number));
    const auto ids = tokenizer->encode(*text, parse_special);
    if (!ids) return complain(fmt::format("line {}: {}", number, ids.error().message));
    const auto back = tokenizer->decode(*ids);
    if (!back || *back != *text || streamed(*tokenizer, *ids) != *text) {
      return complain(fmt::format("line {}: the string does not come back from its ids", number));
    }
    for (std::size_t i = 0; i < ids->size(); ++i) std::cout << (i == 0 ? "" : " ") << (*ids)[i];
    std::cout << '\n';
  }
  return std::cout.flush() ? 0 : complain("cannot write");
}
