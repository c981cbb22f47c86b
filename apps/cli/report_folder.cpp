#include "report_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "console.hpp"
#include "interrupt.hpp"
#include "machine.hpp"
#include "options.hpp"

namespace stet::cli {
namespace {

std::string now_in_words() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[32] = "";
  if (::gmtime_r(&now, &utc) != nullptr) (void)std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

std::string quoted(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + '\'';
}

}  // namespace

CLI::Option* add_report_flag(CLI::App& app, ReportFlag& flag, const Run& run) {
  flag.command = run.words();
  auto set = [&flag](std::string folder) {
    if (folder.empty()) throw CLI::ValidationError("--report", "must name a folder, not ''");
    flag.folder = std::move(folder);
  };
  return add_text(
             app, "--report", set,
             "Write a report into this folder: report.html, plots as SVG and PNG (by gnuplot), data as CSV and JSON")
      ->type_name("DIR");
}

std::string shell_quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + quoted(word);
  return text;
}

Result<ReportFolder> ReportFolder::open(const ReportFlag& flag) {
  ReportFolder opened;
  if (flag.folder.empty()) return opened;
  auto folder = report::Folder::open(flag.folder);
  if (!folder) return pass(folder);
  opened.flag_ = flag;
  opened.folder_ = std::move(*folder);
  return opened;
}

int ReportFolder::write(report::Report report, const std::string& model, std::optional<std::uint64_t> seed) const {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"machine", machine_words()}, {"build", build_words()}, {"model", model}};
  if (seed) facts.emplace_back("seed", fmt::format("{}", *seed));
  std::vector<std::string> command = flag_.command;
  if (!command.empty()) command.front() = std::filesystem::path(command.front()).filename().string();
  facts.emplace_back("command", shell_quoted(command));
  facts.emplace_back("date", now_in_words());
  for (auto& fact : report.facts) {
    const auto named = [&](const auto& other) { return other.first == fact.first; };
    if (std::none_of(facts.begin(), facts.end(), named)) facts.push_back(std::move(fact));
  }
  report.facts = std::move(facts);
  Progress progress("report");
  progress.show("drawing");
  const auto written = folder_->write(report, [] { return !interrupted(); });
  progress.clear();
  if (!written) return cli::report(written.error());
  say(fmt::format("report: {}", (std::filesystem::path(flag_.folder) / "report.html").string()));
  if (!written->no_plots.empty()) say(fmt::format("no plots: {}; the page has numbers instead", written->no_plots));
  return kOk;
}

}  // namespace stet::cli
