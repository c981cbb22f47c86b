#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <system_error>

#include "base/new_file.hpp"
#include "report/escape.hpp"
#include "report/gnuplot.hpp"
#include "report/page.hpp"
#include "report/plot_script.hpp"
#include "report/report.hpp"
#include "report/svg.hpp"

namespace stet::report {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPage = "report.html";

Failure io(const fs::path& path, const char* doing, int reason) {
  return fail(Code::io,
              fmt::format("{}: {}: {}", line_of(path.string()), doing, std::generic_category().message(reason)));
}

// Only trying tells: permissions, read-only file systems and full quotas are seen in different places.
Result<void> try_a_file(const fs::path& folder) {
  const fs::path probe = folder / fmt::format(".stet-{}-try.tmp", ::getpid());
  const int fd =
      ::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);  // NOLINT(*-vararg)
  if (fd < 0) return io(folder, "no file can be made in this report folder", errno);
  ::close(fd);
  ::unlink(probe.c_str());
  return {};
}

Result<void> take_away(const fs::path& file) {
  if (::unlink(file.c_str()) == 0 || errno == ENOENT) return {};
  return io(file, "an earlier run's file cannot be taken away", errno);
}

// Names become files' names, and ids in the page.
bool plain(const std::string& name) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !name.empty() && name.find_first_not_of(kLetters) == std::string::npos;
}

Result<void> check_names(const Report& report) {
  std::set<std::string> tables, plots;
  const auto check = [](const char* kind, const std::string& name, std::set<std::string>& seen) -> Result<void> {
    const char* wrong = !plain(name)                ? "is no plain file name"
                        : !seen.insert(name).second ? "is there twice in the report"
                                                    : nullptr;
    if (wrong == nullptr) return {};
    return fail(Code::invalid_argument, fmt::format("the {} '{}' {}", kind, line_of(name), wrong));
  };
  for (const Section& section : report.sections) {
    for (const Table& table : section.tables) {
      if (auto ok = check("table", table.name, tables); !ok) return ok;
    }
    for (const Plot& plot : section.plots) {
      if (auto ok = check("plot", plot.name, plots); !ok) return ok;
    }
  }
  return {};
}

// Writes the files of one report.
class Writer {
 public:
  Writer(fs::path folder, const std::function<bool()>& keep_going)
      : folder_(std::move(folder)), keep_going_(keep_going) {}

  Result<Folder::Written> write(const Report& report) {
    if (auto ok = take_away(folder_ / kPage); !ok) return pass(ok);
    for (const Section& section : report.sections) {
      for (const Table& table : section.tables) {
        if (auto ok = put(table.name + ".csv", csv_of(table)); !ok) return pass(ok);
      }
      for (const Plot& plot : section.plots) {
        if (auto ok = put(plot.name + ".data.csv", csv_of(data_of(plot))); !ok) return pass(ok);
      }
    }
    if (auto ok = put("report.json", report.json + '\n'); !ok) return pass(ok);
    for (const Section& section : report.sections) {
      for (const Plot& plot : section.plots) {
        if (auto ok = draw(plot); !ok) return pass(ok);
      }
    }
    if (auto ok = put(kPage, page_of(report, pictures_, written_.no_plots)); !ok) return pass(ok);
    return std::move(written_);
  }

 private:
  Result<void> put(const std::string& name, const std::string& bytes) {
    if (keep_going_ && !keep_going_()) {
      return fail(Code::interrupted, fmt::format("interrupted: {} has no {}", line_of(folder_.string()), kPage));
    }
    auto file = base::NewFile::create(folder_ / name);
    if (!file) return pass(file);
    if (auto ok = file->write(0, std::as_bytes(std::span(bytes))); !ok) return ok;
    if (auto ok = file->commit(); !ok) return ok;
    written_.files.push_back(name);
    return {};
  }

  Result<void> draw(const Plot& plot) {
    if (missing_) return no_picture(plot);
    const auto drawn = [&](Picture picture) -> Result<std::string> {
      auto bytes = run_gnuplot(script_of(plot, picture), keep_going_);
      const bool whole = bytes && (picture == Picture::svg ? is_svg(*bytes) : is_png(*bytes));
      if (bytes && !whole) return fail(Code::unsupported, "gnuplot made no picture");
      return bytes;
    };
    auto svg = drawn(Picture::svg);
    if (!svg) return not_drawn(plot, svg.error());
    const auto png = drawn(Picture::png);
    if (!png) return not_drawn(plot, png.error());
    if (auto ok = put(plot.name + ".svg", svg_for_file(*svg, plot)); !ok) return ok;
    if (auto ok = put(plot.name + ".png", *png); !ok) return ok;
    pictures_.emplace(plot.name, std::move(*svg));
    return {};
  }

  // All but a stop asked for: the rest is still written.
  Result<void> not_drawn(const Plot& plot, const Error& error) {
    if (error.code == Code::interrupted) {
      return fail(Code::interrupted, fmt::format("interrupted: {} has no {}", line_of(folder_.string()), kPage));
    }
    missing_ = error.code == Code::not_found;
    if (written_.no_plots.empty()) {
      written_.no_plots = missing_ ? error.message + " (Debian's package is gnuplot-nox)"
                                   : fmt::format("{} ({})", error.message, plot.name);
    }
    return no_picture(plot);
  }

  // An earlier run's picture would show other numbers.
  Result<void> no_picture(const Plot& plot) {
    if (auto ok = take_away(folder_ / (plot.name + ".svg")); !ok) return ok;
    return take_away(folder_ / (plot.name + ".png"));
  }

  fs::path folder_;
  const std::function<bool()>& keep_going_;
  Folder::Written written_;
  std::map<std::string, std::string> pictures_;
  bool missing_ = false;
};

}  // namespace

Result<Folder> Folder::open(const std::string& path) {
  if (path.empty()) return fail(Code::invalid_argument, "the report folder's name is empty");
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) return io(path, "this report folder cannot be made", errno);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return io(path, "this report folder cannot be used", errno);
  if (!S_ISDIR(status.st_mode)) return io(path, "this report folder cannot be used", ENOTDIR);
  if (auto ok = try_a_file(path); !ok) return pass(ok);
  if (auto ok = take_away(fs::path(path) / kPage); !ok) return pass(ok);
  return Folder(path);
}

Result<Folder::Written> Folder::write(const Report& report, const std::function<bool()>& keep_going) const {
  if (auto ok = check_names(report); !ok) return pass(ok);
  return Writer(path_, keep_going).write(report);
}

}  // namespace stet::report
