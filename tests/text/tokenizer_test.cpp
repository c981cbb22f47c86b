#include "stet/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "text/small.hpp"
#include "text/utf8.hpp"

namespace stet::text {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string join(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

/// Bytes of all kinds: any byte, pieces of characters, whole characters of all planes, spaces, the vocabulary's own
/// words.
std::string random_bytes(std::mt19937& random) {
  static const std::vector<std::string> words = {"hello",         " the",         "    ",        "a\xc3\xa9",
                                                 "<|endoftext|>", "'ll",          "\r\n",        "\xed\xa0\x80",
                                                 "\xc0\x80",      "\xf0\x9f\x98", "\xe2\x80\xa8"};
  std::string text;
  for (auto n = random() % 24; n > 0; --n) {
    switch (random() % 3) {
      case 0:
        text += static_cast<char>(random() % 256);
        break;
      case 1:
        text += to_utf8(static_cast<char32_t>(random() % 0xd800));
        break;
      default:
        text += words[random() % words.size()];
    }
  }
  return text;
}

TEST(Tokenizer, Encodes) {
  const Tokenizer tokenizer = make(small_files());
  const auto spelled = [&tokenizer](std::string_view text) { return spell(tokenizer, tokenizer.encode(text).value()); };
  EXPECT_THAT(spelled("hello the hell"), ElementsAre("hello", " the", " ", "hell"));
  EXPECT_THAT(spelled("     x"), ElementsAre("    ", " ", "x"));
  EXPECT_THAT(spelled("other"), ElementsAre("o", "t", "he", "r"));
  EXPECT_THAT(spelled("a\u00e9"), ElementsAre("a\u00e9"));
  EXPECT_THAT(spelled("a\xc3"), ElementsAre("a", "\xc3"));  // the pattern cuts between, so no merge
  EXPECT_THAT(tokenizer.encode("").value(), IsEmpty());
  EXPECT_THAT(tokenizer.encode("AZ").value(), ElementsAre(small_byte('A'), small_byte('Z')));
}

TEST(Tokenizer, Describes) {
  const Tokenizer tokenizer = make(small_files());
  const int count = 256 + static_cast<int>(small_merges().size()) + 1;
  EXPECT_EQ(tokenizer.vocab_size(), count);
  EXPECT_EQ(tokenizer.token_bytes(256), "he");
  EXPECT_EQ(tokenizer.token_bytes(small_byte(' ')), " ");
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_EQ(tokenizer.token_bytes(count), "");
  EXPECT_EQ(tokenizer.special("<|endoftext|>"), count - 1);
  EXPECT_EQ(tokenizer.special("hello"), std::nullopt);
  EXPECT_EQ(tokenizer.special(""), std::nullopt);
}

TEST(Tokenizer, SpecialTokensOnlyWhenAskedFor) {
  const Tokenizer tokenizer = make(small_files());
  const TokenId special = *tokenizer.special("<|endoftext|>");
  const auto plain = tokenizer.encode("hello<|endoftext|>");
  const auto parsed = tokenizer.encode("hello<|endoftext|>", true);
  EXPECT_THAT(plain.value(), ::testing::Not(::testing::Contains(special)));
  EXPECT_THAT(spell(tokenizer, parsed.value()), ElementsAre("hello", "<|endoftext|>"));
  EXPECT_EQ(parsed->back(), special);
  EXPECT_EQ(tokenizer.decode(*plain).value(), "hello<|endoftext|>");
  EXPECT_EQ(tokenizer.decode(*parsed).value(), "hello<|endoftext|>");
}

// What is before a special token is encoded as if the text ended there: the spaces stay together.
TEST(Tokenizer, TextAroundSpecialTokensStandsAlone) {
  const Tokenizer tokenizer = make(small_files());
  const auto spelled = [&](std::string_view text) { return spell(tokenizer, tokenizer.encode(text, true).value()); };
  EXPECT_THAT(spelled("  <|endoftext|>  x"), ElementsAre("  ", "<|endoftext|>", " ", " ", "x"));
  EXPECT_THAT(spelled("<|endoftext|><|endoftext|>"), ElementsAre("<|endoftext|>", "<|endoftext|>"));
  EXPECT_EQ(spelled("<|endoftext|").size(), 12U);
  EXPECT_EQ(join(spelled("<|<|endoftext|>|>")), "<|<|endoftext|>|>");
}

TEST(Tokenizer, AddedTokensLeftmostThenLongest) {
  auto json = small_tokenizer_json();
  int id = 1000;
  for (const char* text : {"<x", "<xy", "xyz", "[plain]"}) {
    json["added_tokens"].push_back({{"id", id++}, {"content", text}, {"special", text[0] != '['}});
  }
  const Tokenizer tokenizer = make(json);
  EXPECT_EQ(tokenizer.vocab_size(), 1004);
  EXPECT_THAT(tokenizer.encode("<xyz", true).value(), ElementsAre(1001, small_byte('z')));
  EXPECT_THAT(tokenizer.encode("<xxyz", true).value(), ElementsAre(1000, 1002));
  EXPECT_THAT(tokenizer.encode("[plain]").value(), ElementsAre(1003));  // not special: always
  EXPECT_EQ(tokenizer.special("[plain]"), std::nullopt);
  EXPECT_EQ(tokenizer.special("<xy"), 1001);
  EXPECT_EQ(tokenizer.token_bytes(999), "");  // a hole
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{1001, 1003}).value(), "<xy[plain]");
}

TEST(Tokenizer, DecodeNamesAnIdThatIsNone) {
  const Tokenizer tokenizer = make(small_files());
  for (const TokenId id : {-1, tokenizer.vocab_size(), 2147483647}) {
    const auto text = tokenizer.decode(std::vector<TokenId>{256, id});
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code, Code::invalid_argument);
    EXPECT_EQ(text.error().message, "token 1: the vocabulary has no id " + std::to_string(id));
  }
  EXPECT_EQ(tokenizer.decode({}).value(), "");
}

TEST(Tokenizer, EncodeNamesAByteThatHasNoToken) {
  auto files = small_files();
  auto vocab = nlohmann::json::parse(files.vocab.text);
  vocab.erase("Z");
  files.vocab.text = vocab.dump();
  const Tokenizer tokenizer = make(files);
  EXPECT_TRUE(tokenizer.encode("hello"));
  const auto ids = tokenizer.encode("hello the <|endoftext|>fiZz", true);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, Code::invalid_argument);
  EXPECT_EQ(ids.error().message, "byte 25 of the text: the vocabulary has no token for the byte 0x5a");
}

TEST(Tokenizer, TenThousandRandomStringsComeBack) {
  const Tokenizer tokenizer = make(small_files());
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    const std::string text = random_bytes(random);
    for (const bool parse_special : {false, true}) {
      const auto ids = tokenizer.encode(text, parse_special);
      ASSERT_TRUE(ids);
      ASSERT_EQ(tokenizer.decode(*ids).value(), text) << in_quotes(text);
      ASSERT_EQ(join(stream(tokenizer, *ids)), text) << in_quotes(text);
    }
  }
}

TEST(Tokenizer, OneForManyThreads) {
  const Tokenizer tokenizer = make(small_files());
  std::vector<std::string> texts;
  std::vector<std::vector<TokenId>> expected;
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    texts.push_back(random_bytes(random));
    expected.push_back(tokenizer.encode(texts.back()).value());
  }
  std::vector<int> equal(4);
  std::vector<std::thread> threads;
  for (int& count : equal) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i) count += tokenizer.encode(texts[i]).value() == expected[i] ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(200));
}

TEST(Tokenizer, LongRunsComeBack) {
  const Tokenizer tokenizer = make(small_files());
  const std::size_t n = 1000000;
  for (const char c : {'l', ' ', '\xff', '7'}) {
    const auto ids = tokenizer.encode(std::string(n, c));
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(ids->size(), c == 'l' ? n / 2 : c == ' ' ? n / 4 : n);
    EXPECT_EQ(tokenizer.decode(*ids).value(), std::string(n, c));
  }
}

TEST(StreamDecoder, HoldsACharacterUntilItIsComplete) {
  const Tokenizer tokenizer = make(small_files());
  const std::vector<TokenId> ids = tokenizer.encode("\U0001f642!").value();
  EXPECT_THAT(stream(tokenizer, ids), ElementsAre("", "", "", "\U0001f642", "!", ""));
  const std::vector<TokenId> split = {small_byte(0xe2), small_byte(0x82), small_byte(0xac), small_byte('x')};
  EXPECT_THAT(stream(tokenizer, split), ElementsAre("", "", "\u20ac", "x", ""));
  // A token that ends in the middle of a character gives what comes before it.
  const std::vector<TokenId> inside = {256 + 8, small_byte(0xa9)};
  ASSERT_THAT(spell(tokenizer, inside), ElementsAre("a\xc3", "\xa9"));
  EXPECT_THAT(stream(tokenizer, inside), ElementsAre("a", "\u00e9", ""));
}

TEST(StreamDecoder, InvalidBytesPassAsSoonAsTheyAreInvalid) {
  const Tokenizer tokenizer = make(small_files());
  const auto streamed = [&tokenizer](std::string_view bytes) {
    std::vector<TokenId> ids;
    for (const char c : bytes) ids.push_back(small_byte(static_cast<unsigned char>(c)));
    return stream(tokenizer, ids);
  };
  EXPECT_THAT(streamed("\xff"
                       "a"),
              ElementsAre("\xff", "a", ""));
  EXPECT_THAT(streamed("\xe2\x82"
                       "a"),
              ElementsAre("", "",
                          "\xe2\x82"
                          "a",
                          ""));
  EXPECT_THAT(streamed("\xe2\xe2\x82\xac"), ElementsAre("", "\xe2", "", "\u20ac", ""));
  EXPECT_THAT(streamed("\xed\xa0\x80"), ElementsAre("", "\xed\xa0", "\x80", ""));
  EXPECT_THAT(streamed("\xf0\x9f\x98"), ElementsAre("", "", "", "\xf0\x9f\x98"));
}

TEST(StreamDecoder, IsAsNewAfterTheEndAndPassesOverUnknownIds) {
  const Tokenizer tokenizer = make(small_files());
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(small_byte(0xe2)), "");
  EXPECT_EQ(decoder.finish(), "\xe2");
  EXPECT_EQ(decoder.push(small_byte(0x82)), "\x82");
  EXPECT_EQ(decoder.push(-5), "");
  EXPECT_EQ(decoder.finish(), "");
}

}  // namespace
}  // namespace stet::text
