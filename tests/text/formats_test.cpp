// Folders and files that load, and what they mean.
#include "text/formats.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "stet/tokenizer.hpp"
#include "text/alphabet.hpp"
#include "text/small.hpp"

namespace stet::text {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kText = "hello the    world, a\u00e9 <|endoftext|>\xff";

std::vector<TokenId> ids_of(const Tokenizer& tokenizer) {
  return tokenizer.encode(kText, true).value();
}

TEST(Folder, AllThreeKindsOfFileGiveTheSame) {
  const std::vector<TokenId> expected = ids_of(make(small_files()));
  const auto files = small_files();
  const std::pair<const char*, const char*> pairs[] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
  for (const auto& [vocab, merges] : pairs) {
    const Folder folder;
    folder.write(vocab, files.vocab.text);
    folder.write(merges, files.merges.text);
    const auto tokenizer = Tokenizer::load(folder.path());
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    EXPECT_EQ(ids_of(*tokenizer), expected);
  }
  const Folder folder;
  folder.write("tokenizer.json", small_tokenizer_json().dump(2));
  folder.write("vocab.json", "alone, so it is not read");
  const auto tokenizer = Tokenizer::load(folder.path());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(ids_of(*tokenizer), expected);
}

TEST(Folder, ThePairComesBeforeTokenizerJson) {
  const Folder folder;
  folder.write("vocab.json", small_files().vocab.text);
  folder.write("merges.txt", "#version: 0.2\n");
  folder.write("tokenizer.json", "not even JSON");
  const auto tokenizer = Tokenizer::load(folder.path());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->encode("hello")->size(), 5U);
}

TEST(Folder, WithoutAVocabulary) {
  const Folder folder;
  const auto nothing = Tokenizer::load(folder.path());
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code, Code::not_found);
  EXPECT_THAT(nothing.error().message, HasSubstr(folder.path().string() + ": no vocabulary"));
  EXPECT_EQ(Tokenizer::load(folder.path() / "absent").error().code, Code::not_found);

  folder.write("merges.txt", "#version: 0.2\n");
  const auto half = Tokenizer::load(folder.path());
  ASSERT_FALSE(half);
  EXPECT_EQ(half.error().code, Code::corrupt);
  EXPECT_EQ(half.error().message, (folder.path() / "merges.txt").string() + ": it needs vocab.json beside it");
}

TEST(Folder, WhatCannotBeReadIsNamed) {
  const Folder folder;
  folder.write("vocab.json", small_files().vocab.text);
  std::filesystem::create_directory(folder.path() / "merges.txt");
  const auto tokenizer = Tokenizer::load(folder.path());
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, Code::io);
  EXPECT_THAT(tokenizer.error().message, HasSubstr("merges.txt: is a directory"));
}

TEST(Folder, AFileWithoutEndIsRefusedUnread) {
  const Folder folder;
  folder.write("merges.txt", "");
  folder.write("vocab.json", "");
  std::filesystem::resize_file(folder.path() / "vocab.json", std::uintmax_t{1} << 40);  // a hole, no blocks
  const auto tokenizer = Tokenizer::load(folder.path());
  ASSERT_FALSE(tokenizer);
  EXPECT_THAT(tokenizer.error().message, HasSubstr("vocab.json: 1099511627776 bytes"));
}

/// The bundled model's tokenizer: every byte a token, the id the byte.
TEST(Folder, BundledModel) {
  const auto tokenizer = Tokenizer::load(std::string(STET_SOURCE_DIR) + "/models/shakespeare-char");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_THAT(tokenizer->encode("RO\n \xff").value(), ElementsAre('R', 'O', '\n', ' ', 0xff));
}

TEST(VocabFiles, MergesWithoutAVersionOrWithCarriageReturns) {
  const std::vector<TokenId> expected = ids_of(make(small_files()));
  auto files = small_files();
  const std::string body = files.merges.text.substr(files.merges.text.find('\n') + 1);
  files.merges.text = body;
  EXPECT_EQ(ids_of(make(files)), expected);
  files.merges.text = "#version: 0.2\r\n";
  for (const char c : body) files.merges.text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(ids_of(make(files)), expected);
  files.merges.text = body.substr(0, body.size() - 1);  // no line end at the end
  EXPECT_EQ(ids_of(make(files)), expected);
}

TEST(VocabFiles, EndOfTextIsSpecialOnlyIfNothingElseIs) {
  auto files = small_files();
  EXPECT_TRUE(make(files).special("<|endoftext|>"));
  files.tokenizer_config = {"tokenizer_config.json",
                            R"({"eos_token": null, "add_bos_token": false, "errors": "replace"})"};
  EXPECT_TRUE(make(files).special("<|endoftext|>"));
  files.special_tokens_map = {"special_tokens_map.json", R"({"eos_token": "hello"})"};
  const Tokenizer tokenizer = make(files);
  EXPECT_EQ(tokenizer.special("<|endoftext|>"), std::nullopt);
  EXPECT_EQ(tokenizer.special("hello"), tokenizer.encode("hello")->at(0));  // a token of the BPE as well
}

TEST(VocabFiles, SpecialTokensOfHuggingFacesFiles) {
  auto files = small_files();
  files.added_tokens = {"added_tokens.json",
                        R"({"[PAD]": 300, "[SEP]": 310, "[plain]": 301, "two words \u00e9": 305})"};
  files.special_tokens_map = {"special_tokens_map.json",
                              R"({"pad_token": {"content": "[PAD]", "lstrip": false, "special": true},
                                  "bos_token": "<|endoftext|>", "additional_special_tokens": ["two words \u00e9"]})"};
  files.tokenizer_config = {
      "tokenizer_config.json",
      R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": false, "unk_token": "<|endoftext|>",
                                "model_max_length": 1000000000000000019884624838656,
                                "added_tokens_decoder": {"300": {"content": "[PAD]", "special": true},
                                                         "310": {"content": "[SEP]", "special": true}}})"};
  const Tokenizer tokenizer = make(files);
  EXPECT_EQ(tokenizer.vocab_size(), 311);
  EXPECT_EQ(tokenizer.special("[PAD]"), 300);
  EXPECT_EQ(tokenizer.special("[SEP]"), 310);
  EXPECT_EQ(tokenizer.special("[plain]"), std::nullopt);
  EXPECT_EQ(tokenizer.special("<|endoftext|>"), 267);
  EXPECT_THAT(tokenizer.encode("two words \u00e9[plain]", true).value(), ElementsAre(305, 301));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{305}).value(), "two words \u00e9");
}

// A vocabulary that lists a special token by its text, not in the letters for bytes.
TEST(VocabFiles, AnAddedTokenInTheVocabularyIsMeantLiterally) {
  auto files = small_files();
  auto vocab = json::parse(files.vocab.text);
  vocab["<|begin\u2581of|>"] = 400;
  vocab["\u00e9 \u0120"] = 401;
  files.vocab.text = vocab.dump();
  files.special_tokens_map = {"special_tokens_map.json",
                              R"({"bos_token": "<|begin\u2581of|>", "eos_token": "\u00e9 \u0120"})"};
  const Tokenizer tokenizer = make(files);
  EXPECT_EQ(tokenizer.token_bytes(400), "<|begin\u2581of|>");
  EXPECT_EQ(tokenizer.token_bytes(401), "\u00e9 \u0120");
  EXPECT_THAT(tokenizer.encode("<|begin\u2581of|>", true).value(), ElementsAre(400));
}

TEST(TokenizerJson, BothSpellingsOfMerges) {
  json spelled = small_tokenizer_json();
  json pairs = spelled;
  pairs["model"]["merges"] = json::array();
  for (const auto& [left, right] : small_merges()) {
    pairs["model"]["merges"].push_back(json::array({letters_of(left), letters_of(right)}));
  }
  EXPECT_EQ(ids_of(make(pairs)), ids_of(make(spelled)));
  EXPECT_EQ(ids_of(make(pairs)), ids_of(make(small_files())));
}

TEST(TokenizerJson, WhatMakesNoDifferenceIsAccepted) {
  const std::vector<TokenId> expected = ids_of(make(small_files()));
  json other = small_tokenizer_json();
  other["model"].erase("type");
  other["model"]["unk_token"] = "<|endoftext|>";
  other["model"]["fuse_unk"] = true;
  other["model"]["dropout"] = 0.0;
  other["model"]["ignore_merges"] = false;
  other["pre_tokenizer"].erase("use_regex");
  other["pre_tokenizer"]["trim_offsets"] = false;
  other["post_processor"] = nullptr;
  other["truncation"] = {{"max_length", 8}};
  other["padding"] = {{"pad_id", 0}};
  EXPECT_EQ(ids_of(make(other)), expected);
}

}  // namespace
}  // namespace stet::text
