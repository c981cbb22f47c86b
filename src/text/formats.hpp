// The two ways in which GPT-2's vocabulary is written down, read from text: hostile input is the rule here.
// Every error is one line that begins with a document's name. Code::corrupt: the text contradicts itself or its format.
// Code::unsupported: it asks for other results than GPT-2's algorithm gives, and the key that does is named.
#pragma once

#include <filesystem>
#include <optional>

#include "stet/result.hpp"
#include "text/json.hpp"
#include "text/vocabulary.hpp"

namespace stet::text {

/// openai/gpt-2's encoder.json and vocab.bpe, which Hugging Face calls vocab.json and merges.txt.
///
/// vocab: an object of id by token, the tokens in the letters of alphabet.hpp. merges: a line for each, two tokens with
/// a space between, after a first line "#version..." (which may be missing, as for Hugging Face's tokenizers).
///
/// The others, all optional, are Hugging Face's and say which tokens are found by their text: added_tokens an object of
/// id by text; special_tokens_map and tokenizer_config name the special ones, which must have an id. Without a single
/// one of these,
/// "<|endoftext|>" is special if the vocabulary has it.
struct VocabFiles {
  Document vocab, merges;
  std::optional<Document> added_tokens, special_tokens_map, tokenizer_config;
};
Result<Vocabulary> parse_vocab_files(const VocabFiles& files);

/// Hugging Face's tokenizer.json, of which only GPT-2's settings are supported: a BPE model with a ByteLevel
/// pre-tokenizer and decoder. `truncation` and `padding` are ignored, as they are properties of a batch and
/// transformers resets them. tokenizer_config is read for settings that would override it.
struct TokenizerFiles {
  Document tokenizer;
  std::optional<Document> tokenizer_config;
};
Result<Vocabulary> parse_tokenizer_json(const TokenizerFiles& files);

/// Reads a model folder as Tokenizer::load says.
Result<Vocabulary> read_folder(const std::filesystem::path& folder);

}  // namespace stet::text
