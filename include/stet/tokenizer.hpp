// Text to token ids and back.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet {

class Tokenizer;
namespace text {
class Vocabulary;
Result<Tokenizer> make_tokenizer(Vocabulary vocabulary);  // src/text/model.hpp
}  // namespace text

/// GPT-2's byte-level BPE (Radford et al. 2019; the reference is openai/gpt-2 encoder.py). Immutable, so any number of
/// threads may use one. decode(encode(text)) == text for every byte string, valid UTF-8 or not: an invalid byte counts
/// as a character that is neither space, letter nor digit. What is a letter follows the Unicode version of the PCRE2
/// library.
class Tokenizer {
 public:
  /// Reads a model folder: vocab.json + merges.txt (or encoder.json + vocab.bpe), else tokenizer.json. Special tokens
  /// are those of tokenizer.json, or those that special_tokens_map.json, tokenizer_config.json and added_tokens.json
  /// name, or, when there is none, "<|endoftext|>". Errors name the file and the line or key: Code::not_found when the
  /// folder has no vocabulary at all, Code::unsupported for settings that ask for other results than GPT-2's algorithm
  /// gives, Code::corrupt, Code::io.
  static Result<Tokenizer> load(const std::filesystem::path& folder);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Special tokens spelled in the text are plain text, unless `parse_special`; added tokens that are not special
  /// always count. Time n log n in the bytes. Code::invalid_argument names a byte that the vocabulary has no token for,
  /// and its place; a vocabulary with all 256 encodes everything.
  Result<std::vector<TokenId>> encode(std::string_view text, bool parse_special = false) const;

  /// The bytes that the ids stand for. Code::invalid_argument names an id that the vocabulary lacks.
  Result<std::string> decode(std::span<const TokenId> ids) const;

  /// The bytes of one token; empty when the vocabulary lacks the id (holes are legal).
  std::string_view token_bytes(TokenId id) const noexcept;

  /// Largest id + 1.
  int vocab_size() const noexcept;

  /// The id of a special token by its text ("<|endoftext|>").
  std::optional<TokenId> special(std::string_view text) const noexcept;

 private:
  struct Impl;
  friend Result<Tokenizer> text::make_tokenizer(text::Vocabulary vocabulary);
  explicit Tokenizer(std::unique_ptr<const Impl> impl) noexcept;
  std::unique_ptr<const Impl> impl_;
};

/// Decoding as tokens arrive: a character that spans tokens is held back until it is complete. The concatenation of all
/// pieces, finish() included, equals the decoding of all ids, byte for byte. The tokenizer must outlive it and stay in
/// place.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) noexcept : tokenizer_(&tokenizer) {}

  /// The bytes that became complete with this token; invalid UTF-8 passes as soon as it cannot become valid. Nothing
  /// for an id that the vocabulary lacks.
  std::string push(TokenId id);
  /// What was held back. The decoder is then as new.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string held_;
};

}  // namespace stet
