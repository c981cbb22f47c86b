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

/// GPT-2's byte-level BPE (Radford et al. 2019; the reference is openai/gpt-2 encoder.py). Immutable, so any number of
/// threads may use one. decode(encode(text)) == text for every byte string, valid UTF-8 or not.
class Tokenizer {
 public:
  /// Reads a model folder: vocab.json + merges.txt (or encoder.json + vocab.bpe), else tokenizer.json. Errors name the file.
  static Result<Tokenizer> load(const std::filesystem::path& folder);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Special tokens spelled in the text are plain text, unless `parse_special`.
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
  explicit Tokenizer(std::unique_ptr<const Impl> impl) noexcept;
  std::unique_ptr<const Impl> impl_;
};

/// Decoding as tokens arrive: a character that spans tokens is held back until it is complete. The concatenation of all
/// pieces, finish() included, equals the decoding of all ids, byte for byte.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) noexcept : tokenizer_(&tokenizer) {}

  /// The bytes that became complete with this token; invalid UTF-8 passes as soon as it cannot become valid.
  std::string push(TokenId id);
  /// What was held back.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string held_;
};

}  // namespace stet
