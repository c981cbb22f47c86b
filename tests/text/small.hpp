// A vocabulary small enough to know by heart, and folders to put it in.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/tokenizer.hpp"
#include "text/formats.hpp"

namespace stet::text {

/// Merges as bytes, best first.
using Merges = std::vector<std::pair<std::string, std::string>>;

/// "he", "ll", "hell", "hello", " t", " the", two spaces, four spaces, and both halves and the whole of "é" with
/// an "a".
const Merges& small_merges();

/// The id of a byte in small vocabularies: not the byte itself, so that nothing can take one for the other.
constexpr TokenId small_byte(unsigned char byte) {
  return byte ^ 0x5a;
}

/// Tokens 0 to 255 are bytes, 256 on what the merges make, in their order; `more` texts follow.
nlohmann::json small_vocab(const Merges& merges, const std::vector<std::string>& more = {});
std::string merges_text(const Merges& merges);

/// small_merges as vocab.json and merges.txt, with "<|endoftext|>" as the last token.
VocabFiles small_files();
/// The same as tokenizer.json.
nlohmann::json small_tokenizer_json();

Tokenizer make(const VocabFiles& files);
Tokenizer make(const nlohmann::json& tokenizer_json);

/// A folder of its own, removed at the end.
class Folder {
 public:
  Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder();
  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, std::string_view text) const;

 private:
  std::filesystem::path path_;
};

/// The pieces that a StreamDecoder gives, finish() as the last.
std::vector<std::string> stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids);

/// The bytes of each token.
std::vector<std::string> spell(const Tokenizer& tokenizer, const std::vector<TokenId>& ids);

}  // namespace stet::text
