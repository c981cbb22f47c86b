// Axes, ticks and the places of labels, and what gnuplot is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "report/axis.hpp"
#include "report/escape.hpp"
#include "report/labels.hpp"
#include "report/plot_layout.hpp"
#include "report/plot_script.hpp"

namespace stet::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> words(const Scale& scale) {
  std::vector<std::string> labels;
  for (const Tick& tick : scale.ticks) {
    if (!tick.label.empty()) labels.push_back(tick.label);
  }
  return labels;
}

TEST(Axis, TokensArePowersOfTwo) {
  const Axis log{"tokens", true, true};
  EXPECT_THAT(words(scale_of(log, {16, 16384}, Room::none)), ElementsAre("16", "64", "256", "1k", "4k", "16k"));
  EXPECT_THAT(words(scale_of(log, {128, 2048}, Room::none)), ElementsAre("128", "256", "512", "1k", "2k"));
  EXPECT_THAT(words(scale_of(log, {1 << 19, 1 << 21}, Room::none)), ElementsAre("512k", "1M", "2M"));
  const Axis linear{"tokens", false, true, true};
  EXPECT_THAT(words(scale_of(linear, {1024}, Room::none)), ElementsAre("0", "256", "512", "768", "1k"));
}

TEST(Axis, NumbersAreRound) {
  const Axis linear{"ms", false, false, true}, log{"ms", true};
  EXPECT_THAT(words(scale_of(linear, {42.5}, Room::none)), ElementsAre("0", "10", "20", "30", "40"));
  EXPECT_THAT(words(scale_of(linear, {1.6}, Room::none)),
              ElementsAre("0", "0.25", "0.50", "0.75", "1.00", "1.25", "1.50"));
  EXPECT_THAT(words(scale_of(linear, {60000}, Room::none)),
              ElementsAre("0", "10,000", "20,000", "30,000", "40,000", "50,000", "60,000"));
  EXPECT_THAT(words(scale_of(log, {0.01, 2000}, Room::none)), ElementsAre("0.01", "0.1", "1", "10", "100", "1,000"));
  EXPECT_THAT(words(scale_of(log, {3, 70}, Room::none)), ElementsAre("5", "10", "20", "50"));
  EXPECT_THAT(words(scale_of(log, {1e-8, 1e-1}, Room::none)),
              ElementsAre("10⁻⁸", "10⁻⁷", "10⁻⁶", "10⁻⁵", "10⁻⁴", "0.001", "0.01", "0.1"));
}

// Whatever the values are: an axis that can be drawn, ticks on it, at least one with words, not too many.
TEST(Axis, DegenerateValuesHaveAnAxis) {
  const std::vector<std::vector<double>> all = {{},
                                                {0},
                                                {5},
                                                {-5},
                                                {7, 7, 7},
                                                {kNan, kInfinity, -kInfinity},
                                                {kNan, 3},
                                                {0, 0},
                                                {-1, 1},
                                                {-1e299, 1e299},
                                                {1e-299, 1e299},
                                                {1e308, -1e308},
                                                {1, 1 + 1e-15},
                                                {1000000, 1000001},
                                                {5e-324},
                                                {1e-290, 2e-290},
                                                {700, 701},
                                                {3, 3.1}};
  for (const bool log : {false, true}) {
    for (const bool tokens : {false, true}) {
      for (const bool zero : {false, true}) {
        for (const Room room : {Room::none, Room::above_and_below}) {
          for (std::size_t i = 0; i < all.size(); ++i) {
            SCOPED_TRACE(testing::Message()
                         << "log " << log << " tokens " << tokens << " zero " << zero << " case " << i);
            const Axis axis{"x", log, tokens, zero};
            const Scale scale = scale_of(axis, all[i], room);
            ASSERT_TRUE(std::isfinite(scale.low) && std::isfinite(scale.high));
            ASSERT_LT(scale.low, scale.high);
            ASSERT_TRUE(!log || scale.low > 0);
            for (const double value : all[i]) {
              if (!shows(axis, value)) continue;
              EXPECT_GE(scale.at(value), -1e-9);
              EXPECT_LE(scale.at(value), 1 + 1e-9);
            }
            EXPECT_LE(words(scale).size(), 12U);
            EXPECT_GE(words(scale).size(), 1U);
            double before = -kInfinity;
            for (const Tick& tick : scale.ticks) {
              EXPECT_GT(tick.value, before);
              before = tick.value;
              EXPECT_GE(scale.at(tick.value), -1e-5);
              EXPECT_LE(scale.at(tick.value), 1 + 1e-5);
            }
          }
        }
      }
    }
  }
}

TEST(Axis, FromZeroStartsThere) {
  const Scale scale = scale_of({"ms", false, false, true}, {4.4, 4.6}, Room::above_and_below);
  EXPECT_EQ(scale.low, 0);
  EXPECT_GT(scale.high, 4.6);
}

TEST(Labels, AreBrokenAtSpacesAndEvenly) {
  EXPECT_THAT(wrapped("no cache, all scores at once", 25, 3), ElementsAre("no cache, all", "scores at once"));
  EXPECT_THAT(wrapped("short", 25, 3), ElementsAre("short"));
  EXPECT_THAT(wrapped("", 25, 3), ElementsAre(""));
  EXPECT_THAT(wrapped("ääääääääää", 6, 3), ElementsAre("äääää", "äääää"));  // counts code points, cuts none
  const auto cut = wrapped(std::string(1000, 'x'), 10, 2);
  ASSERT_EQ(cut.size(), 2U);
  EXPECT_EQ(cut[1], "xxxxxxxxx…");
}

TEST(Labels, AreMovedApartAndNoFarther) {
  EXPECT_THAT(spread({{10, 4}, {50, 4}}, 0, 100), ElementsAre(10, 50));
  EXPECT_THAT(spread({{50, 4}, {10, 4}}, 0, 100), ElementsAre(50, 10));
  EXPECT_THAT(spread({{10, 4}, {10, 4}}, 0, 100), ElementsAre(8, 12));
  EXPECT_THAT(spread({{10, 4}, {10, 8}, {11, 4}}, 0, 100), testing::SizeIs(3));
  EXPECT_THAT(spread({{0, 4}, {0, 4}}, 0, 100), ElementsAre(2, 6));        // pushed up from the border
  EXPECT_THAT(spread({{100, 4}, {100, 4}}, 0, 100), ElementsAre(94, 98));  // and down
  EXPECT_THAT(spread({}, 0, 100), testing::IsEmpty());
}

Plot plot_of(std::vector<Series> series) {
  Plot plot;
  plot.name = "plot";
  plot.title = "A plot";
  plot.x = {"context, tokens", true, true};
  plot.y = {"step, ms"};
  plot.series = std::move(series);
  return plot;
}

TEST(Layout, LabelsNeverOverlap) {
  std::vector<Series> many;
  for (int i = 0; i < 30; ++i) {
    many.push_back({"curve number " + std::to_string(i) + " with a label of two lines",
                    Series::Style::line,
                    {{16, 1}, {1024, 2 + i * 1e-3}}});
  }
  const Layout at = layout_of(plot_of(many));
  ASSERT_EQ(at.curves.size(), many.size());
  for (std::size_t i = 1; i < at.curves.size(); ++i) {
    EXPECT_GE(at.curves[i].label_y - at.curves[i - 1].label_y, 2 * kLineHeight - 1e-9) << i;
  }
  EXPECT_GT(at.curves.front().label_y, kLineHeight);
  EXPECT_LT(at.curves.back().label_y, at.height - kLineHeight);
  EXPECT_GT(at.right, at.width / 3);  // the frame keeps most of the picture
}

// No words touch others, none leave the picture, no line goes through words.
void expect_marks_apart(const std::vector<Mark>& marks, std::size_t shown) {
  Plot plot = plot_of({{"a", Series::Style::line, {{16, 1}, {16384, 2}}}});
  plot.marks = marks;
  const Layout at = layout_of(plot);
  ASSERT_EQ(at.marks.size(), shown);
  for (const MarkLabel& a : at.marks) {
    EXPECT_GE(a.left, 0) << a.text;
    EXPECT_LE(a.right, at.width) << a.text;
    EXPECT_GE(a.right - a.left, static_cast<double>(width_of(a.text)) * kFontSize * 0.6);
    EXPECT_GT(a.y, at.top);
    EXPECT_LT(a.y, at.height - kTitleHeight);
    for (const MarkLabel& b : at.marks) {
      if (&a == &b) continue;
      EXPECT_TRUE(a.y != b.y || a.right < b.left || b.right < a.left) << a.text << " touches " << b.text;
      const double line = at.x_of(b.x);
      EXPECT_FALSE(b.y > a.y && line > a.left && line < a.right)
          << "the line of " << b.text << " goes through " << a.text;
    }
  }
}

TEST(Layout, WordsOfMarksDoNotOverlapEachOtherOrLines) {
  expect_marks_apart({{776, "with the head: 776"}, {768, "6C = 768"}, {128, "context"}, {kNan, "?"}}, 3);
  expect_marks_apart({{16384, "at the very end, in many words"}}, 1);
  expect_marks_apart(
      {{16384, "at the very end, in many words"}, {16000, "a little before that, also long"}, {15000, "short"}}, 3);
  expect_marks_apart({{16, "at the start"}, {17, "after it"}, {18, "and again"}, {20, "and so on"}}, 4);
}

TEST(Script, HostileWordsStayWords) {
  Plot plot = plot_of({{"it's `touch x` @a $b {/Bold c} \\", Series::Style::line, {{16, 1}, {32, 2}}}});
  plot.title = "a'\nset output 'stolen'\n";
  plot.x.label = "x'; system('id'); '";
  for (const Picture picture : {Picture::svg, Picture::png}) {
    const std::string script = script_of(plot, picture);
    EXPECT_THAT(script, Not(HasSubstr("\nset output")));
    EXPECT_THAT(script, HasSubstr("noenhanced"));
    EXPECT_THAT(script, HasSubstr("''; system(''id''); ''"));
    EXPECT_EQ(script.find('"'), std::string::npos) << "double quotes run what stands in backquotes";
    EXPECT_THAT(script, HasSubstr("'it''s "));
  }
}

TEST(Script, PointsThatCannotStandAreCounted) {
  const Plot plot = plot_of({{"a", Series::Style::line, {{0, 1}, {16, kNan}, {32, kInfinity}, {64, 1}, {128, 2}}}});
  EXPECT_EQ(left_out(plot), 3U);
  const std::string script = script_of(plot, Picture::svg);
  EXPECT_THAT(script, HasSubstr("$s0 << END\n64 1\n128 2\nEND\n"));
}

// Each curve in its colour, and the way on from one that ends early in grey.
TEST(Script, CurvesHaveTheirColoursAndLeadersNone) {
  Plot plot;
  plot.series = {{"a", Series::Style::line, {{1, 1}, {2, 2}}, -1}, {"b", Series::Style::line, {{1, 3}, {9, 2}}, 3}};
  const std::string script = script_of(plot, Picture::png);
  EXPECT_THAT(script, HasSubstr("linecolor rgb '#0072b2' linewidth 2"));
  EXPECT_THAT(script, HasSubstr("linecolor rgb '#cc79a7' linewidth 2"));
  EXPECT_THAT(script, Not(HasSubstr("linecolor rgb '#0072b2' linewidth 0.8")));
  EXPECT_THAT(script, HasSubstr("linecolor rgb '#66666a' linewidth 0.8"));
}

}  // namespace
}  // namespace stet::report
