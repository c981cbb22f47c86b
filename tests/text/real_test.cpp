// The real GPT-2 vocabulary, published ids, and a Hugging Face folder. Skipped without ../shared.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "stet/tokenizer.hpp"
#include "text/utf8.hpp"

namespace stet {
namespace {

using nlohmann::json;

const std::filesystem::path kData = std::filesystem::path(STET_SHARED_DIR) / "data";

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

Tokenizer load(const std::string& folder) {
  auto tokenizer = Tokenizer::load(kData / folder);
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);  // GoogleTest makes it a failure of the test
  return std::move(*tokenizer);
}

class RealVocabulary : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kData / "gpt2-tokenizer")) {
      GTEST_SKIP() << "the real GPT-2 vocabulary is not at " << kData / "gpt2-tokenizer";
    }
  }
};

TEST_F(RealVocabulary, PublishedIds) {
  const Tokenizer tokenizer = load("gpt2-tokenizer");
  EXPECT_EQ(tokenizer.vocab_size(), 50257);
  EXPECT_EQ(tokenizer.special("<|endoftext|>"), 50256);
  int cases = 0;
  for (const char* name : {"gpt3encoder.json", "llamacpp_gpt2.json", "tiktoken_gpt2.json"}) {
    const json vectors = json::parse(read(kData / "tokenizer-vectors" / name));
    for (const json& c : vectors.at("cases")) {
      const auto text = c.at("text").get<std::string>();
      const auto ids = tokenizer.encode(text);
      ASSERT_TRUE(ids);
      EXPECT_EQ(*ids, c.at("ids").get<std::vector<TokenId>>()) << name << ": " << text;
      EXPECT_EQ(tokenizer.decode(*ids).value(), text);
      ++cases;
    }
  }
  EXPECT_EQ(cases, 73);
}

TEST_F(RealVocabulary, Shakespeare) {
  const Tokenizer tokenizer = load("gpt2-tokenizer");
  const std::string text = read(kData / "tinyshakespeare.txt");
  const auto ids = tokenizer.encode(text);
  ASSERT_TRUE(ids);
  EXPECT_EQ(ids->size(), 338025U);
  EXPECT_EQ(tokenizer.decode(*ids).value(), text);
  StreamDecoder decoder(tokenizer);
  std::string streamed;
  for (const TokenId id : *ids) streamed += decoder.push(id);
  EXPECT_EQ(streamed + decoder.finish(), text);
}

TEST_F(RealVocabulary, LongRuns) {
  const Tokenizer tokenizer = load("gpt2-tokenizer");
  for (const char c : {'a', ' ', '\xff', '\n'}) {
    const std::string text(1000000, c);
    const auto ids = tokenizer.encode(text);
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(tokenizer.decode(*ids).value(), text);
  }
}

TEST_F(RealVocabulary, TokenizerJsonGivesTheSameAsThePair) {
  const Tokenizer pair = load("gpt2-tokenizer");
  const Tokenizer folder = load("tiny-gpt2-wide");
  ASSERT_EQ(folder.vocab_size(), pair.vocab_size());
  for (TokenId id = 0; id < pair.vocab_size(); ++id) ASSERT_EQ(folder.token_bytes(id), pair.token_bytes(id)) << id;

  const std::string text = read(kData / "tinyshakespeare.txt");
  EXPECT_EQ(folder.encode(text).value(), pair.encode(text).value());
  std::mt19937 random(3);
  for (int i = 0; i < 5000; ++i) {
    std::string mixed = i % 4 == 0 ? "<|endoftext|>" : "";
    for (auto n = random() % 30; n > 0; --n) {
      const auto kind = random() % 3;
      if (kind == 0) mixed += static_cast<char>(random() % 256);
      if (kind == 1) mixed += text::to_utf8(static_cast<char32_t>(random() % 0xd800));
      if (kind == 2) mixed += text.substr(random() % text.size(), random() % 12);
    }
    for (const bool special : {false, true}) {
      ASSERT_EQ(folder.encode(mixed, special).value(), pair.encode(mixed, special).value()) << text::in_quotes(mixed);
    }
  }
}

}  // namespace
}  // namespace stet
