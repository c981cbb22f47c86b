// Hostile vocabulary files, and texts through whatever vocabulary could be loaded. The first byte chooses:
//
//   0  vocab.json, merges.txt, added_tokens.json, special_tokens_map.json, tokenizer_config.json, with NUL between
//   1  tokenizer.json
//   2  a valid set of files with some places overwritten, so that the fuzzer need not discover JSON first
//   3  a vocabulary made from the input, its merges compared with the definition of BPE
//
// Every error must be one line that begins with a document's name; every text must come back from its ids, at once and
// streamed.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/tokenizer.hpp"
#include "text/alphabet.hpp"
#include "text/bpe.hpp"
#include "text/formats.hpp"
#include "text/model.hpp"

namespace {

using stet::Result;
using stet::TokenId;
using stet::text::Document;
using stet::text::letters_of;
using stet::text::Vocabulary;

void check(bool holds) {
  if (!holds) std::abort();
}

constexpr std::string_view kNames[] = {
    "vocab.json",    "merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json",
    "tokenizer.json"};

/// Takes `text` through the vocabulary and back, if it loaded.
void exercise(Result<Vocabulary> vocabulary, std::string_view text) {
  if (!vocabulary) {
    const std::string& message = vocabulary.error().message;
    check(message.find_first_of("\r\n\x1b") == message.npos);
    check(std::any_of(std::begin(kNames), std::end(kNames), [&](auto name) { return message.starts_with(name); }));
    return;
  }
  const auto tokenizer = stet::text::make_tokenizer(std::move(*vocabulary));
  check(tokenizer.has_value());
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer->encode(text, parse_special);
    if (!ids) {
      check(ids.error().code == stet::Code::invalid_argument);
      continue;
    }
    check(tokenizer->decode(*ids).value() == text);
    stet::StreamDecoder decoder(*tokenizer);
    std::string streamed;
    for (const TokenId id : *ids) streamed += decoder.push(id);
    check(streamed + decoder.finish() == text);
  }
}

std::string small_vocab() {
  std::string json = "{\"<|endoftext|>\":260,\"he\":256,\"ll\":257,\"hell\":258,\"" + letters_of("  ") + "\":259";
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    std::string letter = letters_of(std::string_view(&c, 1));
    if (letter == "\"" || letter == "\\") letter.insert(0, "\\");
    json += ",\"" + letter + "\":" + std::to_string(byte);
  }
  return json + "}";
}

const std::string kVocab = small_vocab();
const std::string kMerges = "#version: 0.2\nh e\nl l\nhe ll\n" + letters_of(" ") + " " + letters_of(" ") + "\n";
const std::string kAdded = R"({"[PAD]":261,"\u00e9 x":262})";
const std::string kMap = R"({"eos_token":"<|endoftext|>","pad_token":{"content":"[PAD]","lstrip":false}})";
const std::string kConfig =
    R"({"add_prefix_space":false,"tokenizer_class":"GPT2Tokenizer","added_tokens_decoder":{"261":{"content":"[PAD]",)"
    R"("special":true}},"unk_token":null})";
const std::string kTokenizer =
    R"({"added_tokens":[{"id":260,"content":"<|endoftext|>","special":true},{"id":270,"content":"[x]","lstrip":false}],)"
    R"("normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"post_processor":null,)"
    R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","dropout":null,"byte_fallback":false,)"
    R"("merges":["h e",["l","l"],"he ll"],"vocab":)" +
    kVocab + "}}";

std::string overwritten(std::string text, FuzzedDataProvider& data) {
  for (int edits = data.ConsumeIntegralInRange(0, 3); edits > 0; --edits) {
    const auto at = data.ConsumeIntegralInRange<std::size_t>(0, text.size());
    const auto gone = data.ConsumeIntegralInRange<std::size_t>(0, 16);
    text.replace(at, gone, data.ConsumeRandomLengthString(16));
  }
  return text;
}

void overwrite_files(FuzzedDataProvider& data) {
  if (data.ConsumeBool()) {
    Document tokenizer{"tokenizer.json", overwritten(kTokenizer, data)};
    Document config{"tokenizer_config.json", overwritten(kConfig, data)};
    auto vocabulary = stet::text::parse_tokenizer_json({std::move(tokenizer), std::move(config)});
    exercise(std::move(vocabulary), data.ConsumeRemainingBytesAsString());
    return;
  }
  stet::text::VocabFiles files;
  files.vocab = {"vocab.json", overwritten(kVocab, data)};
  files.merges = {"merges.txt", overwritten(kMerges, data)};
  files.added_tokens = {"added_tokens.json", overwritten(kAdded, data)};
  files.special_tokens_map = {"special_tokens_map.json", overwritten(kMap, data)};
  files.tokenizer_config = {"tokenizer_config.json", overwritten(kConfig, data)};
  auto vocabulary = stet::text::parse_vocab_files(files);
  exercise(std::move(vocabulary), data.ConsumeRemainingBytesAsString());
}

void raw_files(std::string_view rest) {
  const auto next = [&rest] {
    const std::string_view part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    return std::string(part);
  };
  stet::text::VocabFiles files;
  files.vocab = {"vocab.json", next()};
  files.merges = {"merges.txt", next()};
  if (!rest.empty()) files.added_tokens = {"added_tokens.json", next()};
  if (!rest.empty()) files.special_tokens_map = {"special_tokens_map.json", next()};
  if (!rest.empty()) files.tokenizer_config = {"tokenizer_config.json", next()};
  exercise(stet::text::parse_vocab_files(files), rest);
}

using Merges = std::vector<std::pair<std::string, std::string>>;

/// Again and again the leftmost of the pairs that come first in the list.
std::vector<std::string> by_definition(const Merges& merges, std::string_view piece) {
  std::vector<std::string> word;
  for (const char c : piece) word.emplace_back(1, c);
  for (std::size_t rank = 0; rank < merges.size();) {
    std::size_t i = 0;
    while (i + 1 < word.size() && std::pair(word[i], word[i + 1]) != merges[rank]) ++i;
    if (i + 1 >= word.size()) {
      ++rank;
      continue;
    }
    word[i] += word[i + 1];
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    rank = 0;
  }
  return word;
}

void made_vocabulary(FuzzedDataProvider& data) {
  stet::text::VocabularyBuilder builder;
  std::vector<std::string> tokens;
  for (const char c : {'a', 'b', ' ', '\xc3', '\xa9'}) {
    check(builder.add_token(std::string_view(&c, 1), static_cast<TokenId>(tokens.size()), "byte").has_value());
    tokens.emplace_back(1, c);
  }
  Merges merges;
  for (int n = data.ConsumeIntegralInRange(0, 12); n > 0; --n) {
    auto pick = [&] { return tokens[data.ConsumeIntegralInRange<std::size_t>(0, tokens.size() - 1)]; };
    std::string left = pick();
    std::string right = pick();
    const std::string both = left + right;
    if (builder.add_token(both, static_cast<TokenId>(tokens.size()), "token")) tokens.push_back(both);
    if (data.ConsumeBool() && builder.add_merge(left, right, "merge")) merges.emplace_back(left, right);
  }
  auto vocabulary = std::move(builder).build("made");
  check(vocabulary.has_value());

  std::string piece = data.ConsumeRemainingBytesAsString();
  constexpr std::string_view kLetters = "ab \xc3\xa9";
  for (char& c : piece) c = kLetters[static_cast<unsigned char>(c) % kLetters.size()];
  std::vector<TokenId> ids;
  check(stet::text::Merger(*vocabulary).append(piece, 0, ids).has_value());
  std::vector<std::string> found;
  for (const TokenId id : ids) found.emplace_back(vocabulary->bytes(id));
  check(found == by_definition(merges, piece));
  exercise(std::move(vocabulary), piece);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  FuzzedDataProvider data(bytes + 1, size - 1);
  const std::string_view raw(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  switch (bytes[0] % 4) {
    case 0:
      raw_files(raw);
      break;
    case 1:
      exercise(stet::text::parse_tokenizer_json({{"tokenizer.json", std::string(raw)}, {}}), "a\xff  <|endoftext|>");
      break;
    case 2:
      overwrite_files(data);
      break;
    default:
      made_vocabulary(data);
  }
  return 0;
}
