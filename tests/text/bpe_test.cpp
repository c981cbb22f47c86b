#include "text/bpe.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "text/small.hpp"

namespace stet::text {
namespace {

using ::testing::ElementsAre;

Vocabulary vocabulary_of(const Merges& merges) {
  VocabularyBuilder builder;
  std::int64_t id = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    EXPECT_TRUE(builder.add_token(std::string_view(&c, 1), id++, "byte"));
  }
  std::set<std::string> made;
  for (const auto& [left, right] : merges) {
    if (!made.insert(left + right).second) continue;
    EXPECT_TRUE(builder.add_token(left + right, id++, "token"));
  }
  for (const auto& [left, right] : merges) EXPECT_TRUE(builder.add_merge(left, right, "merge"));
  return std::move(builder).build("test").value();
}

std::vector<std::string> tokens(const Vocabulary& vocabulary, std::string_view piece) {
  std::vector<TokenId> ids;
  Merger merger(vocabulary);
  EXPECT_TRUE(merger.append(piece, 0, ids));
  std::vector<std::string> bytes;
  for (const TokenId id : ids) bytes.emplace_back(vocabulary.bytes(id));
  return bytes;
}

/// The definition: again and again the leftmost of the pairs that come first in the list.
std::vector<std::string> by_definition(const Merges& merges, std::string_view piece) {
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (const auto& merge : merges) ranks.emplace(merge, ranks.size());
  std::vector<std::string> word;
  for (const char c : piece) word.emplace_back(1, c);
  for (;;) {
    std::size_t best = std::numeric_limits<std::size_t>::max();
    std::size_t where = 0;
    for (std::size_t i = 0; i + 1 < word.size(); ++i) {
      const auto found = ranks.find({word[i], word[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      where = i;
    }
    if (best == std::numeric_limits<std::size_t>::max()) return word;
    word[where] += word[where + 1];
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

TEST(Bpe, MergesByRankNotFromTheLeft) {
  const Vocabulary vocabulary = vocabulary_of({{"b", "c"}, {"a", "b"}, {"bc", "d"}, {"a", "bcd"}});
  EXPECT_THAT(tokens(vocabulary, "abd"), ElementsAre("ab", "d"));
  EXPECT_THAT(tokens(vocabulary, "abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(tokens(vocabulary, "abcd"), ElementsAre("abcd"));
  EXPECT_THAT(tokens(vocabulary, "a"), ElementsAre("a"));
  EXPECT_THAT(tokens(vocabulary, ""), ElementsAre());
}

TEST(Bpe, OverlappingPairsGoToTheLeft) {
  const Vocabulary vocabulary = vocabulary_of({{"a", "a"}, {"aa", "aa"}});
  EXPECT_THAT(tokens(vocabulary, "aaa"), ElementsAre("aa", "a"));
  EXPECT_THAT(tokens(vocabulary, "aaaaaaa"), ElementsAre("aaaa", "aa", "a"));
}

/// The order stated in bpe.hpp for lists that use a token before the merge that makes it.
TEST(Bpe, OneOccurrenceAtATime) {
  const Vocabulary vocabulary = vocabulary_of({{"ab", "a"}, {"a", "b"}});
  EXPECT_THAT(tokens(vocabulary, "abab"), ElementsAre("aba", "b"));
}

TEST(Bpe, EqualsTheDefinitionOnRandomLists) {
  std::mt19937 random(7);
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    Merges merges;
    std::vector<std::string> parts = {"a", "b", "c"};
    for (int i = 0; i < 20; ++i) {
      std::pair<std::string, std::string> merge = {parts[below(parts.size())], parts[below(parts.size())]};
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
      parts.push_back(merge.first + merge.second);
      merges.push_back(std::move(merge));
    }
    // Any order of the list is legal, so that a merge may come before those that make its parts.
    if (round % 2 == 1) std::shuffle(merges.begin(), merges.end(), random);
    const Vocabulary vocabulary = vocabulary_of(merges);
    for (int i = 0; i < 20; ++i) {
      std::string piece;
      for (std::size_t n = below(40); n > 0; --n) piece += static_cast<char>('a' + below(3));
      ASSERT_EQ(tokens(vocabulary, piece), by_definition(merges, piece)) << round << ": " << piece;
    }
  }
}

TEST(Bpe, AMissingByteIsNamedAndNothingIsAppended) {
  VocabularyBuilder builder;
  ASSERT_TRUE(builder.add_token("a", 3, "here"));
  const auto vocabulary = std::move(builder).build("here");
  ASSERT_TRUE(vocabulary);
  std::vector<TokenId> ids = {9};
  const auto result = Merger(*vocabulary).append("aa\xf1", 100, ids);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::invalid_argument);
  EXPECT_EQ(result.error().message, "byte 102 of the text: the vocabulary has no token for the byte 0xf1");
  EXPECT_THAT(ids, ElementsAre(9));
}

TEST(VocabularyBuilder, ErrorsChangeNothing) {
  VocabularyBuilder builder;
  ASSERT_TRUE(builder.add_token("a", 0, "x"));
  ASSERT_TRUE(builder.add_token("b", 1, "x"));
  EXPECT_FALSE(builder.add_token("", 2, "x"));
  EXPECT_FALSE(builder.add_token("a", 2, "x"));
  EXPECT_FALSE(builder.add_token("c", 1, "x"));
  EXPECT_FALSE(builder.add_token("c", -1, "x"));
  EXPECT_FALSE(builder.add_token("c", kMaxVocab, "x"));
  EXPECT_FALSE(builder.add_merge("a", "b", "x"));
  EXPECT_FALSE(builder.add_added("c", 1, true, "x"));
  const auto vocabulary = std::move(builder).build("x");
  ASSERT_TRUE(vocabulary);
  EXPECT_EQ(vocabulary->size(), 2);
  EXPECT_TRUE(vocabulary->added().empty());
  EXPECT_EQ(vocabulary->rank(0, 1), Vocabulary::kNoRank);
}

TEST(VocabularyBuilder, NeedsAToken) {
  const auto vocabulary = VocabularyBuilder().build("vocab.json");
  ASSERT_FALSE(vocabulary);
  EXPECT_EQ(vocabulary.error().message, "vocab.json: a vocabulary without tokens");
}

}  // namespace
}  // namespace stet::text
