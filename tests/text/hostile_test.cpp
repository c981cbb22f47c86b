// Files that contradict themselves, their format or GPT-2's algorithm: each has its own error, one line that names the
// place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "text/formats.hpp"
#include "text/json.hpp"
#include "text/small.hpp"

namespace stet::text {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

void expect_error(const Result<Vocabulary>& result, Code code, const std::string& message) {
  ASSERT_FALSE(result) << "loaded, instead of: " << message;
  EXPECT_EQ(result.error().message, message);
  EXPECT_EQ(result.error().code, code) << message;
}

/// The text with the first `from` replaced.
std::string changed(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

struct TextCase {
  std::string from, to, message;
};

TEST(HostileVocab, EachHasItsError) {
  const std::vector<TextCase> cases = {
      {"\"he\":256", "\"he\":257", "vocab.json: key \"ll\": id 257 is also that of the token \"he\""},
      {"\"he\":256", "\"he\":256,\"he\":999", "vocab.json: key \"he\" appears twice in an object"},
      {"\"he\":256", "\"he\":-1", "vocab.json: key \"he\": id -1 is negative"},
      {"\"he\":256", "\"he\":4194304", "vocab.json: key \"he\": id 4194304 is not below the limit of 4194304"},
      {"\"he\":256", "\"he\":18446744073709551615",
       "vocab.json: key \"he\": id 18446744073709551615 is not below the limit of 4194304"},
      {"\"he\":256", "\"he\":18446744073709551616",
       "vocab.json: key \"he\": the id 1.8446744073709552e+19 is not a whole number"},
      {"\"he\":256", "\"he\":256.0", "vocab.json: key \"he\": the id 256.0 is not a whole number"},
      {"\"he\":256", "\"he\":\"256\"", "vocab.json: key \"he\": the id \"256\" is not a whole number"},
      {"\"he\":256", "\"he\":null", "vocab.json: key \"he\": the id null is not a whole number"},
      {"\"he\":256", "\"he\":[[]]", "vocab.json: key \"he\": the id [[]] is not a whole number"},
      {"\"he\":256", "\"he\":1e999", "vocab.json: a number out of range"},
      {"\"he\":256", "\"h e\":256", "vocab.json: key \"h e\": a character that stands for no byte, and no added token"},
      {"\"he\":256", "\"h\\u0000\":256",
       "vocab.json: key \"h\\x00\": a character that stands for no byte, and no added token"},
      {"\"he\":256", "\"\":256", "vocab.json: key \"\": an empty token"},
      {"\"hell\":258", "\"hello2\":258", "merges.txt:4: the result \"hell\" is not in the vocabulary"},
      {"\"he\":256", "\"hex\":256", "merges.txt:2: the result \"he\" is not in the vocabulary"},
  };
  for (const TextCase& c : cases) {
    VocabFiles files = small_files();
    files.vocab.text = changed(files.vocab.text, c.from, c.to);
    expect_error(parse_vocab_files(files), Code::corrupt, c.message);
  }
}

TEST(HostileVocab, NotAnObject) {
  for (const auto& [text, message] :
       std::vector<std::pair<std::string, std::string>>{{"", "line 1, column 1: not valid JSON"},
                                                        {"{}", "a vocabulary without tokens"},
                                                        {"[]", "not a JSON object"},
                                                        {"null", "not a JSON object"},
                                                        {"{\n\"a\": 1\n", "line 3, column 1: not valid JSON"},
                                                        {"{\"h\xff\": 1}", "line 1, column 4: not valid JSON"},
                                                        {"{\"a\":1,}", "line 1, column 8: not valid JSON"},
                                                        {"{\"a\": 1} x", "line 1, column 10: not valid JSON"},
                                                        {"\xef\xbb\xbf\xff", "line 1, column 4: not valid JSON"}}) {
    VocabFiles files = small_files();
    files.vocab.text = text;
    files.merges.text = "";
    expect_error(parse_vocab_files(files), Code::corrupt, "vocab.json: " + message);
  }
}

TEST(HostileMerges, EachHasItsError) {
  const std::vector<TextCase> cases = {
      {"l l\n", "l\n", "merges.txt:3: \"l\" is not two tokens with a space between"},
      {"l l\n", "\n", "merges.txt:3: \"\" is not two tokens with a space between"},
      {"l l\n", "l l l\n", "merges.txt:3: \"l l l\" is not two tokens with a space between"},
      {"l l\n", " l\n", "merges.txt:3: \" l\" is not two tokens with a space between"},
      {"l l\n", "l \n", "merges.txt:3: \"l \" is not two tokens with a space between"},
      {"l l\n", "l  l\n", "merges.txt:3: \"l  l\" is not two tokens with a space between"},
      {"l l\n", "l\tl\n", "merges.txt:3: \"l\\x09l\" is not two tokens with a space between"},
      {"l l\n", "l \u4e00\n", "merges.txt:3: a character in \"\u4e00\" stands for no byte"},
      {"l l\n", "\xff l\n", "merges.txt:3: a character in \"\\xff\" stands for no byte"},
      {"l l\n", "l x\n", "merges.txt:3: the result \"lx\" is not in the vocabulary"},
      {"l l\n", "xy l\n", "merges.txt:3: the left part \"xy\" is not in the vocabulary"},
      {"l l\n", "l xy\n", "merges.txt:3: the right part \"xy\" is not in the vocabulary"},
      {"l l\n", "l l\nl l\n", "merges.txt:4: the merge of \"l\" and \"l\" appears twice"},
      {"#version", "#\nversion", "merges.txt:1: \"#\" is not two tokens with a space between"},
  };
  for (const TextCase& c : cases) {
    VocabFiles files = small_files();
    files.merges.text = changed(files.merges.text, c.from, c.to);
    expect_error(parse_vocab_files(files), Code::corrupt, c.message);
  }
}

TEST(HostileNotes, AddedTokens) {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"[PAD]": -7})", "key \"[PAD]\": id -7 is negative"},
           {R"({"[PAD]": 1.5})", "key \"[PAD]\": the id 1.5 is not a whole number"},
           {R"({"[PAD]": 256})", "key \"[PAD]\": id 256 is also that of the token \"he\""},
           {R"({"": 300})", "key \"\": an empty token"},
           {R"({"[PAD]": 300, "[PAD]": 300})", "key \"[PAD]\" appears twice in an object"},
           {R"(["[PAD]"])", "not a JSON object"},
           {"{\"" + std::string(1025, 'x') + "\": 300}",
            "key \"" + std::string(60, 'x') + "\"...: an added token of 1025 bytes, the limit is 1024"}}) {
    VocabFiles files = small_files();
    files.added_tokens = {"added_tokens.json", text};
    expect_error(parse_vocab_files(files), Code::corrupt, "added_tokens.json: " + message);
  }
  VocabFiles files = small_files();
  files.added_tokens = {"added_tokens.json", R"({"he": 300})"};
  expect_error(parse_vocab_files(files), Code::corrupt,
               "vocab.json: key \"he\": id 256, but 300 in added_tokens.json: key \"he\"");
}

TEST(HostileNotes, SpecialTokensMap) {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"pad_token": "[PAD]"})", "\"pad_token\": the special token \"[PAD]\" has no id in vocab.json"},
           {R"({"pad_token": 5})", "\"pad_token\": 5 is not a token"},
           {R"({"pad_token": {"text": "x"}})", "\"pad_token\": without a text in \"content\""},
           {R"({"additional_special_tokens": "x"})", "\"additional_special_tokens\": is not a list of tokens"},
           {R"({"additional_special_tokens": [7]})", "\"additional_special_tokens\": 7 is not a token"}}) {
    VocabFiles files = small_files();
    files.special_tokens_map = {"map.json", text};
    expect_error(parse_vocab_files(files), Code::corrupt, "map.json: " + message);
  }
}

struct ConfigCase {
  Code code;
  std::string text, message;
};

TEST(HostileNotes, TokenizerConfig) {
  const std::vector<ConfigCase> cases = {
      {Code::unsupported, R"({"add_prefix_space": true})", "add_prefix_space true is not supported"},
      {Code::unsupported, R"({"add_bos_token": true})", "add_bos_token true is not supported"},
      {Code::unsupported, R"({"tokenizer_class": "Qwen2Tokenizer"})",
       "tokenizer_class \"Qwen2Tokenizer\" is not supported"},
      {Code::unsupported, R"({"added_tokens_decoder": {"300": {"content": "[M]", "lstrip": true}}})",
       "added_tokens_decoder \"300\": lstrip true is not supported"},
      {Code::corrupt, R"({"added_tokens_decoder": {"3x": {"content": "[M]"}}})",
       "added_tokens_decoder \"3x\": the key is not an id"},
      {Code::corrupt, R"({"added_tokens_decoder": {"99999999999999999999": {"content": "[M]"}}})",
       "added_tokens_decoder \"99999999999999999999\": the key is not an id"},
      {Code::corrupt, R"({"added_tokens_decoder": {"-3": {"content": "[M]"}}})",
       "added_tokens_decoder \"-3\": id -3 is negative"},
      {Code::corrupt, R"({"added_tokens_decoder": {"300": 1}})", "added_tokens_decoder \"300\": is not an object"},
      {Code::corrupt, R"({"added_tokens_decoder": []})", "added_tokens_decoder is not an object"},
      {Code::corrupt, R"({"added_tokens_decoder": {"300": {"content": "[M]"}, "301": {"content": "[M]"}}})",
       "added_tokens_decoder \"301\": \"[M]\" has id 301, but 300 in config.json: added_tokens_decoder \"300\""},
  };
  for (const ConfigCase& c : cases) {
    VocabFiles files = small_files();
    files.tokenizer_config = {"config.json", c.text};
    expect_error(parse_vocab_files(files), c.code, "config.json: " + c.message);
  }
}

struct JsonCase {
  Code code;
  std::function<void(json&)> change;
  std::string message;
};

TEST(HostileTokenizerJson, EachHasItsError) {
  const Code no = Code::unsupported;
  const Code bad = Code::corrupt;
  const std::vector<JsonCase> cases = {
      {no,
       [](json& t) {
         t["normalizer"] = {{"type", "NFC"}};
       },
       "normalizer {\"type\":\"NFC\"} is not supported"},
      {no, [](json& t) { t["pre_tokenizer"]["type"] = "Whitespace"; },
       "pre_tokenizer: \"Whitespace\" is not supported, only \"ByteLevel\" is"},
      {no, [](json& t) { t["pre_tokenizer"] = nullptr; },
       "pre_tokenizer: null is not supported, only \"ByteLevel\" is"},
      {no, [](json& t) { t["pre_tokenizer"]["add_prefix_space"] = true; },
       "pre_tokenizer: add_prefix_space true is not supported"},
      {no, [](json& t) { t["pre_tokenizer"].erase("add_prefix_space"); },
       "pre_tokenizer: add_prefix_space null is not supported"},
      {no, [](json& t) { t["pre_tokenizer"]["use_regex"] = false; }, "pre_tokenizer: use_regex false is not supported"},
      {no, [](json& t) { t["pre_tokenizer"]["pattern"] = "."; }, "pre_tokenizer: \"pattern\" \".\" is not known"},
      {no,
       [](json& t) {
         t["post_processor"] = {{"type", "TemplateProcessing"}};
       },
       "post_processor: \"TemplateProcessing\" is not supported, only \"ByteLevel\" is"},
      {no,
       [](json& t) {
         t["decoder"] = {{"type", "WordPiece"}};
       },
       "decoder: \"WordPiece\" is not supported, only \"ByteLevel\" is"},
      {no, [](json& t) { t.erase("decoder"); }, "decoder: null is not supported, only \"ByteLevel\" is"},
      {no, [](json& t) { t["novelty"] = 1; }, "\"novelty\" 1 is not known"},
      {no, [](json& t) { t["model"]["type"] = "WordPiece"; },
       "model: type \"WordPiece\" is not supported, only \"BPE\" is"},
      {no, [](json& t) { t["model"]["dropout"] = 0.1; }, "model: dropout 0.1 is not supported"},
      {no, [](json& t) { t["model"]["byte_fallback"] = true; }, "model: byte_fallback true is not supported"},
      {no, [](json& t) { t["model"]["ignore_merges"] = true; }, "model: ignore_merges true is not supported"},
      {no, [](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; },
       "model: end_of_word_suffix \"</w>\" is not supported"},
      {no, [](json& t) { t["model"]["continuing_subword_prefix"] = "##"; },
       "model: continuing_subword_prefix \"##\" is not supported"},
      {no, [](json& t) { t["model"]["novelty"] = "x"; }, "model: \"novelty\" \"x\" is not known"},
      {no, [](json& t) { t["added_tokens"][0]["rstrip"] = true; }, "added_tokens[0]: rstrip true is not supported"},
      {no, [](json& t) { t["added_tokens"][0]["single_word"] = true; },
       "added_tokens[0]: single_word true is not supported"},
      {bad, [](json& t) { t["added_tokens"][0]["id"] = "x"; }, "added_tokens[0]: the id \"x\" is not a whole number"},
      {bad, [](json& t) { t["added_tokens"][0].erase("content"); }, "added_tokens[0]: without a text in \"content\""},
      {bad, [](json& t) { t["added_tokens"][0] = 7; }, "added_tokens[0]: is not an object"},
      {bad, [](json& t) { t["added_tokens"] = 7; }, "added_tokens: is not a list"},
      {bad, [](json& t) { t["added_tokens"].push_back(t["added_tokens"][0]); },
       "added_tokens[1]: the added token \"<|endoftext|>\" again"},
      {bad, [](json& t) { t["added_tokens"][0]["id"] = 5; },
       "model.vocab: key \"<|endoftext|>\": id 267, but 5 in tokenizer.json: added_tokens[0]"},
      {bad, [](json& t) { t["model"] = "BPE"; }, "model: is not an object"},
      {bad, [](json& t) { t["model"].erase("vocab"); }, "model.vocab: is not an object"},
      {bad, [](json& t) { t["model"]["vocab"] = json::array({"a"}); }, "model.vocab: is not an object"},
      {bad, [](json& t) { t["model"].erase("merges"); }, "model.merges: is not a list"},
      {bad, [](json& t) { t["model"]["merges"][1] = 5; }, "model.merges[1]: 5 is not a pair of tokens"},
      {bad, [](json& t) { t["model"]["merges"][1] = "l"; }, "model.merges[1]: \"l\" is not a pair of tokens"},
      {bad, [](json& t) { t["model"]["merges"][1] = "l l l"; }, "model.merges[1]: \"l l l\" is not a pair of tokens"},
      {bad,
       [](json& t) {
         t["model"]["merges"][1] = {"l", "l", "l"};
       },
       "model.merges[1]: [\"l\",\"l\",\"l\"] is not a pair of tokens"},
      {bad,
       [](json& t) {
         t["model"]["merges"][1] = {"l", 1};
       },
       "model.merges[1]: [\"l\",1] is not a pair of tokens"},
      {bad,
       [](json& t) {
         t["model"]["merges"][1] = {"l", "z"};
       },
       "model.merges[1]: the result \"lz\" is not in the vocabulary"},
      {bad,
       [](json& t) {
         t["model"]["merges"][1] = {"", "l"};
       },
       "model.merges[1]: the left part \"\" is not in the vocabulary"},
  };
  for (const JsonCase& c : cases) {
    json tokenizer = small_tokenizer_json();
    c.change(tokenizer);
    expect_error(parse_tokenizer_json({{"tokenizer.json", tokenizer.dump()}, {}}), c.code,
                 "tokenizer.json: " + c.message);
  }
}

TEST(HostileTokenizerJson, SettingsThatTheConfigOverrides) {
  const Document tokenizer = {"tokenizer.json", small_tokenizer_json().dump()};
  expect_error(parse_tokenizer_json({tokenizer, Document{"config.json", R"({"add_prefix_space": true})"}}),
               Code::unsupported, "config.json: add_prefix_space true is not supported");
  EXPECT_TRUE(parse_tokenizer_json({tokenizer, Document{"config.json", R"({"tokenizer_class": "Any"})"}}));
}

TEST(HostileTokenizerJson, CutAtAnyByte) {
  const std::string whole = small_tokenizer_json().dump();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const auto result = parse_tokenizer_json({{"tokenizer.json", whole.substr(0, n)}, {}});
    ASSERT_FALSE(result) << n;
    ASSERT_THAT(result.error().message, StartsWith("tokenizer.json: line 1, column ")) << n;
  }
}

TEST(HostileVocab, CutAtAnyByte) {
  const VocabFiles whole = small_files();
  for (std::size_t n = 0; n < whole.vocab.text.size(); ++n) {
    VocabFiles files = whole;
    files.vocab.text.resize(n);
    ASSERT_FALSE(parse_vocab_files(files)) << n;
  }
  int loaded = 0;
  for (std::size_t n = 0; n <= whole.merges.text.size(); ++n) {
    VocabFiles files = whole;
    files.merges.text.resize(n);
    loaded += parse_vocab_files(files) ? 1 : 0;
  }
  // What loads: nothing at all, the version line (cut or not), and whole lines with their newline or without.
  EXPECT_EQ(loaded, 1 + 7 + 2 * static_cast<int>(small_merges().size()));
}

TEST(HostileJson, DeepAndWide) {
  const std::string deep(100000, '[');
  EXPECT_EQ(parse_object({"x", "{\"a\":" + deep}).error().message, "x: nested deeper than 64");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_EQ(parse_object({"x", objects}).error().message, "x: nested deeper than 64");
  EXPECT_TRUE(parse_object({"x", "{\"a\":" + std::string(60, '[') + std::string(60, ']') + "}"}));
  std::string wide = "{\"a\":[";
  for (int i = 0; i < 4200000; ++i) wide += "1,";
  EXPECT_EQ(parse_object({"x", wide}).error().message, "x: more than 4194304 values");
}

TEST(HostileJson, DuplicateKeysOfAnyObject) {
  EXPECT_EQ(parse_object({"x", R"({"a":{"b":[{"c":1,"d":2,"c":3}]}})"}).error().message,
            "x: key \"c\" appears twice in an object");
  EXPECT_TRUE(parse_object({"x", R"({"a":{"a":[{"a":1},{"a":2}]},"b":{"a":1}})"}));
}

TEST(HostileJson, ErrorsAreOneLine) {
  const auto result = parse_object({"x", "{\"a\nb\x1b\":1}"});
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, Not(HasSubstr("\n")));
  const auto twice = parse_object({"x", R"({"\n\u001b":1,"\n\u001b":1})"});
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().message, "x: key \"\\x0a\\x1b\" appears twice in an object");
}

}  // namespace
}  // namespace stet::text
