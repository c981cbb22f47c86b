// --report DIR: the folder that a command puts its report into, and the facts that every page begins with.
//
// A command has it so:
//
//   struct Flags { ...; ReportFlag report; };
//   add_report_flag(*sub, flags->report, run);                       // in add_...()
//
//   const auto folder = ReportFolder::open(flags.report);            // before the work: a wrong folder is told at once
//   if (!folder) return cli::report(folder.error());
//   ... the work, and its output on stdout as without the flag ...
//   if (folder->wanted()) {
//     auto page = lab::report_of(result);
//     page.json = dump(what --json prints);
//     if (const int code = folder->write(std::move(page), model, seed); code != kOk) return code;
//   }
//
// A command that was interrupted does not write: open() took an earlier page away, and none stands there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "report/report.hpp"

namespace stet::cli {

struct ReportFlag {
  std::string folder;  // empty: no report is wanted
  std::vector<std::string> command;
};

/// A usage error when the folder's name is empty.
CLI::Option* add_report_flag(CLI::App& app, ReportFlag& flag, const Run& run);

/// The words as they can be pasted into a shell: quoted only where they need it.
std::string shell_quoted(const std::vector<std::string>& words);

class ReportFolder {
 public:
  /// Without the flag a folder that is not wanted. Errors are those of report::Folder::open.
  static Result<ReportFolder> open(const ReportFlag& flag);

  bool wanted() const noexcept { return folder_.has_value(); }

  /// Puts machine, build, model, seed, command and date before the report's own facts, writes it, and says on stderr
  /// where it is, or why not; a line more when there are no plots. Returns the exit code. Call if wanted().
  int write(report::Report report, const std::string& model, std::optional<std::uint64_t> seed = {}) const;

 private:
  ReportFlag flag_;
  std::optional<report::Folder> folder_;
};

}  // namespace stet::cli
