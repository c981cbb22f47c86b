// What `stet break` found, in words, as a table and as a page.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lab/break.hpp"
#include "lab/words.hpp"

namespace stet::lab {
namespace {

std::string shown(const std::optional<std::string>& text, const std::vector<TokenId>& ids) {
  return text ? '"' + in_one_line(*text) + '"' : ids_text(ids);
}

std::string end_of_prompt(const BugReport& bug) {
  constexpr std::size_t kShown = 16;
  const std::size_t n = std::min(kShown, bug.prompt.size());
  const std::vector<TokenId> ids(bug.prompt.end() - static_cast<std::ptrdiff_t>(n), bug.prompt.end());
  if (!bug.prompt_text) return ids_text(ids);
  // Of a text as many bytes as there are tokens at least, and whole characters.
  std::size_t at = bug.prompt_text->size() - std::min(bug.prompt_text->size(), 2 * kShown);
  while (at < bug.prompt_text->size() && (static_cast<unsigned char>((*bug.prompt_text)[at]) & 0xC0U) == 0x80U) ++at;
  return '"' + in_one_line(bug.prompt_text->substr(at)) + '"';
}

std::string percent(double share) {
  return fmt::format("{:.0f} %", share * 100);
}

std::string caught_words(const BugReport& bug) {
  if (!bug.without.equal()) {
    return fmt::format("NOT: verify's \"{}\" differs without the bug too", bug.without.name);
  }
  return fmt::format("{}verify's \"{}\": {} of {} values differ with it, 0 without", bug.caught() ? "" : "NOT by ",
                     bug.with.name, bug.with.differing, bug.with.compared);
}

std::string first_words(const BugReport& bug) {
  if (!bug.first_logit) return "nowhere";
  std::string text = fmt::format("the logits of new token {}", *bug.first_logit);
  text += bug.first_token ? fmt::format(", the text from token {}", *bug.first_token) : ", no token of this text";
  text += fmt::format("; over the right text {} of {} most likely tokens are the same", bug.agreeing, bug.asked);
  return text;
}

std::string signature_words(const BugReport& bug) {
  std::string text;
  for (const Signature& one : bug.signature) {
    text += fmt::format("{}{} = {:.4g}", text.empty() ? "" : "; ", one.words, one.value);
  }
  return text;
}

}  // namespace

std::string words_of(const BugReport& bug) {
  std::string text = fmt::format("{}  on {}{}\n", bug.name, bug.model,
                                 bug.stand_in ? ", which stands in: the model cannot have this bug" : "");
  const auto line = [&](std::string_view label, const std::string& words) {
    if (!words.empty()) text += fmt::format("  {:<9} {}\n", label, words);
  };
  line("what", bug.what);
  line("put in as", bug.injected);
  for (const Dormancy& d : bug.dormant) {
    line(d.proven() ? "sleeps" : "AWAKE", fmt::format("{} ({} of {} logits differ)", d.when, d.differing, d.compared));
  }
  line("prompt", fmt::format("{} tokens, the last: {}", bug.prompt.size(), end_of_prompt(bug)));
  line("shows in", first_words(bug));
  line("signature", signature_words(bug));
  line("right",
       fmt::format("{} ({} repeated)", shown(bug.text_before, bug.ids_before), percent(bug.repetition_before)));
  line("wrong", fmt::format("{} ({} repeated)", shown(bug.text_after, bug.ids_after), percent(bug.repetition_after)));
  line("caught by", caught_words(bug));
  line("cure", bug.cure);
  return text;
}

report::Table table_of(const BreakReport& report) {
  report::Table table;
  table.name = "break";
  table.columns = {{"bug", "bug", true},
                   {"logits from", "first_logit"},
                   {"text from", "first_token"},
                   {"same tokens", "agreement"},
                   {"largest distance", "largest_distance"},
                   {"repeated before", "repetition_before"},
                   {"after", "repetition_after"},
                   {"sleeps", "sleeps", true},
                   {"caught by", "caught_by", true}};
  const auto optional = [](std::optional<int> n) { return n ? report::count(*n) : report::Cell("-", ""); };
  const auto share = [](double x) { return report::Cell(percent(x), fmt::format("{}", x)); };
  for (const BugReport& bug : report.bugs) {
    const double agreement = bug.asked > 0 ? static_cast<double>(bug.agreeing) / bug.asked : 1;
    const auto largest = std::max_element(bug.distance.begin(), bug.distance.end());
    table.rows.push_back({bug.name, optional(bug.first_logit), optional(bug.first_token), share(agreement),
                          report::number(largest == bug.distance.end() ? 0 : *largest, 3), share(bug.repetition_before),
                          share(bug.repetition_after), bug.sleeps() ? "yes" : "NO",
                          bug.caught() ? bug.with.name : "NOT CAUGHT"});
  }
  table.note =
      "logits, text from: the first new token that is other. same tokens: most likely ones, step by step over "
      "the right text. repeated: 4-grams that the text had before.";
  return table;
}

report::Report report_of(const BreakReport& report) {
  report::Report page;
  page.title = "stet break";
  page.summary = report.caught ? fmt::format(
                                     "{} bugs put into place through the cache's interface, and every one of "
                                     "them caught by a pair of stet verify.",
                                     report.bugs.size())
                               : "Not every bug was caught.";
  page.facts = {{"type", name_of(report.dtype)}};
  report::Section summary;
  summary.title = "All of them";
  report::Plot plot;
  plot.name = "break_distance";
  plot.title = "How far a bug has moved the logits";
  plot.x = {"new token"};
  plot.y = {"largest distance of a logit so far", true};
  std::size_t tokens = std::numeric_limits<std::size_t>::max();  // that all texts have
  for (const BugReport& bug : report.bugs) tokens = std::min(tokens, bug.distance.size());
  for (const BugReport& bug : report.bugs) {
    report::Series series;
    series.label = bug.name;
    double largest = 0;
    for (std::size_t i = 0; i < tokens; ++i) {
      if (bug.distance[i] > largest) largest = bug.distance[i];
      // 0 has no place on this axis: there the bug is not to be seen.
      if (largest > 0) series.points.emplace_back(static_cast<double>(i + 1), largest);
    }
    plot.series.push_back(std::move(series));
  }
  plot.caption =
      "Each bug reads the right text, so that only the cache differs. Where a line has not begun the logits are the "
      "same to the bit.";
  summary.plots.push_back(std::move(plot));
  summary.tables.push_back(table_of(report));
  page.sections.push_back(std::move(summary));
  for (const BugReport& bug : report.bugs) {
    report::Section section;
    section.title = bug.name;
    section.paragraphs = {bug.what + '.', "Put in as: " + bug.injected + '.', "Shows in " + first_words(bug) + '.',
                          "Caught by " + caught_words(bug) + '.', "Cure: " + bug.cure + '.'};
    for (const Dormancy& d : bug.dormant) {
      section.paragraphs.push_back(fmt::format("Sleeps {}: {} of {} logits differ.", d.when, d.differing, d.compared));
    }
    if (!bug.signature.empty()) section.paragraphs.push_back(signature_words(bug) + '.');
    section.quotes = {{fmt::format("right ({} repeated)", percent(bug.repetition_before)),
                       text_or_ids(bug.text_before, bug.ids_before)},
                      {fmt::format("wrong ({} repeated)", percent(bug.repetition_after)),
                       text_or_ids(bug.text_after, bug.ids_after)}};
    page.sections.push_back(std::move(section));
  }
  return page;
}

}  // namespace stet::lab
