// Stop strings in streamed text, against a search of the whole string.
#include "sample/stop.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace stet::sample_test {
namespace {

using sample::StopMatcher;
using Strings = std::vector<std::string>;

struct Read {
  std::string text;
  bool stopped = false;
  friend bool operator==(const Read&, const Read&) = default;
};

Read read(const Strings& stops, const Strings& pieces) {
  StopMatcher matcher(stops);
  Read all;
  for (const std::string& piece : pieces) {
    const auto out = matcher.push(piece);
    all.text += out.text;
    all.stopped = out.stopped;
  }
  all.text += matcher.finish();
  return all;
}

// The first end at which a stop string ends; of several the longest.
Read naive(const Strings& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

// The longest end of the text that could still become a stop string.
std::size_t naive_held(const Strings& stops, const std::string& text) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
      if (text.ends_with(stop.substr(0, n))) longest = std::max(longest, n);
    }
  }
  return longest;
}

TEST(StopMatcher, PassesEverythingWithoutStopStrings) {
  EXPECT_EQ(read({}, {"ab", "", "c"}), (Read{"abc", false}));
  EXPECT_EQ(read({"", ""}, {"ab", "c"}), (Read{"abc", false}));
}

TEST(StopMatcher, HoldsBackWhatCouldBecomeAStopString) {
  StopMatcher matcher({"\n\nUser"});
  EXPECT_EQ(matcher.push("Hello\n").text, "Hello");
  EXPECT_EQ(matcher.push("\nUs").text, "");
  EXPECT_EQ(matcher.push("ual\n\nUse").text, "\n\nUsual");
  const auto out = matcher.push("r: more");
  EXPECT_EQ(out.text, "");
  EXPECT_TRUE(out.stopped);
}

TEST(StopMatcher, FindsOverlappingStarts) {
  EXPECT_EQ(read({"aab"}, {"aaab!"}), (Read{"a", true}));
  EXPECT_EQ(read({"aab"}, {"a", "a", "a", "b", "!"}), (Read{"a", true}));
  EXPECT_EQ(read({"abcabd"}, {"abcabcabd"}), (Read{"abc", true}));
  EXPECT_EQ(read({"aa"}, {"baaa"}), (Read{"b", true}));
}

TEST(StopMatcher, TheFirstEndWinsThenTheLongest) {
  EXPECT_EQ(read({"abcd", "bc"}, {"xabcd"}), (Read{"xa", true}));
  EXPECT_EQ(read({"bc", "abc", "c"}, {"xabcd"}), (Read{"x", true}));
  EXPECT_EQ(read({"b", "b"}, {"abc"}), (Read{"a", true}));
}

TEST(StopMatcher, StaysStopped) {
  StopMatcher matcher({"."});
  EXPECT_EQ(matcher.push("a.b").text, "a");
  const auto out = matcher.push("c.");
  EXPECT_EQ(out.text, "");
  EXPECT_TRUE(out.stopped);
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, FinishGivesWhatWasHeld) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("a sto").text, "a ");
  EXPECT_EQ(matcher.finish(), "sto");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, TakesEveryByte) {
  const std::string nul("\0\xff", 2);
  EXPECT_EQ(read({nul}, {"a", std::string("\0", 1), "\xff z"}), (Read{"a", true}));
}

TEST(StopMatcher, AgreesWithASearchOfTheWholeText) {
  std::mt19937 random(1);
  const auto word = [&](unsigned least, unsigned most, unsigned letters) {
    std::string out(least + random() % (most - least + 1), 'a');
    for (char& c : out) c = static_cast<char>('a' + random() % letters);
    return out;
  };
  int stops_found = 0;
  for (int trial = 0; trial < 30'000; ++trial) {
    const unsigned letters = 1 + random() % 3;
    Strings stops(random() % 4);
    for (auto& stop : stops) stop = word(0, 6, letters);
    StopMatcher matcher(stops);
    std::string text, seen;
    bool stopped = false;
    for (auto pieces = random() % 12; pieces > 0; --pieces) {
      const std::string piece = word(0, 4, letters);
      const auto out = matcher.push(piece);
      text += piece;
      seen += out.text;
      stopped = out.stopped;
      const Read expected = naive(stops, text);
      ASSERT_EQ(stopped, expected.stopped) << text;
      // Not a byte too many and not one too few is out at any time.
      ASSERT_EQ(seen, expected.stopped ? expected.text : text.substr(0, text.size() - naive_held(stops, text))) << text;
    }
    seen += matcher.finish();
    ASSERT_EQ((Read{seen, stopped}), naive(stops, text));
    stops_found += stopped;
  }
  EXPECT_GT(stops_found, 5000);
  EXPECT_LT(stops_found, 25'000);
}

// A matcher that starts anew at each byte needs 10^12 steps here.
TEST(StopMatcher, LongStopStringsTakeLinearTime) {
  const std::string stop = std::string(1'000'000, 'a') + "b";
  const std::string text(3'000'000, 'a');
  EXPECT_EQ(read({stop}, {text, "c"}), (Read{text + "c", false}));
}

}  // namespace
}  // namespace stet::sample_test
