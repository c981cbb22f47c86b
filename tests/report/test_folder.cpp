// A folder has a report.html exactly when the whole report is there.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "report/gnuplot.hpp"
#include "report/report.hpp"

namespace stet::report {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "stet-report-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    folder_ = root_ / "out";
    path_ = std::getenv("PATH");
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    fs::remove_all(root_);
  }

  // From here on `gnuplot` is this shell script; an empty one: there is no gnuplot.
  void set_gnuplot(const std::string& script) {
    const fs::path bin = root_ / "bin";
    fs::create_directory(bin);
    if (!script.empty()) {
      std::ofstream(bin / "gnuplot") << "#!/bin/sh\n" << script << '\n';
      fs::permissions(bin / "gnuplot", fs::perms::owner_all);
    }
    ::setenv("PATH", bin.c_str(), 1);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_)) all.push_back(entry.path().filename().string());
    return all;
  }
  bool has_page() const { return fs::exists(folder_ / "report.html"); }
  // No temporary files, no page.
  void expect_no_page() const {
    EXPECT_FALSE(has_page());
    for (const std::string& name : names()) EXPECT_THAT(name, Not(HasSubstr(".tmp")));
  }
  static void expect_no_child() {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "gnuplot still runs, or nobody collected it";
    EXPECT_EQ(errno, ECHILD);
  }

  fs::path root_, folder_;
  std::string path_;
};

Plot small_plot() {
  Plot plot;
  plot.name = "latency";
  plot.title = "A token costs the same";
  plot.x = {"position, tokens", true, true};
  plot.y = {"a token, ms", false, false, true};
  plot.series = {{"with a cache", Series::Style::line, {{16, 1.25}, {32, 1.5}, {64, 1.25}}},
                 {"counted", Series::Style::model, {{16, 1}, {64, 1}}}};
  plot.marks = {{32, "half of it"}};
  plot.caption = "How it was measured.";
  return plot;
}

Report small_report() {
  Report report;
  report.title = "stet <test>";
  report.summary = "All & everything.";
  report.facts = {{"machine", "a <machine>"}, {"command", "stet 'x'"}};
  report.json = "{\"schema\": 1}";
  Section section;
  section.title = "One";
  section.paragraphs = {"Some <b>words</b>."};
  section.plots = {small_plot()};
  Table table;
  table.name = "rows";
  table.title = "Rows";
  table.columns = {{"path", "path", true}, {"total, s", "total_s"}};
  table.rows = {{"a <path>", number(1.0 / 3, 2)}, {"b", {}}};
  section.tables = {table};
  section.quotes = {{"before", "</pre><script>alert(1)</script>\n\x1b[0m"}};
  report.sections = {section};
  return report;
}

TEST_F(FolderTest, HoldsEverything) {
  const auto folder = Folder::open(folder_.string());
  ASSERT_TRUE(folder) << folder.error().message;
  const auto written = folder->write(small_report());
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(written->no_plots, "");
  EXPECT_THAT(written->files, testing::ElementsAre("rows.csv", "latency.data.csv", "report.json", "latency.svg",
                                                   "latency.png", "report.html"));
  EXPECT_THAT(names(), testing::UnorderedElementsAreArray(written->files));

  EXPECT_EQ(content(folder_ / "rows.csv"), "path,total_s\r\na <path>,0.3333333333333333\r\nb,\r\n");
  EXPECT_EQ(content(folder_ / "report.json"), "{\"schema\": 1}\n");
  EXPECT_EQ(content(folder_ / "latency.data.csv"),
            "series,x,y\r\nwith a cache,16,1.25\r\nwith a cache,32,1.5\r\nwith a cache,64,1.25\r\n"
            "counted,16,1\r\ncounted,64,1\r\n");

  const std::string svg = content(folder_ / "latency.svg"), png = content(folder_ / "latency.png");
  for (const char* label :
       {"with a cache", "counted", "half of it", "position, tokens", "a token, ms", ">16<", ">64<"}) {
    EXPECT_THAT(svg, HasSubstr(label));
  }
  EXPECT_TRUE(png.starts_with("\x89PNG\r\n\x1a\n"));

  const std::string page = content(folder_ / "report.html");
  for (const char* part :
       {"<h1>stet &lt;test&gt;</h1>", "All &amp; everything.", "a &lt;machine&gt;", "<svg", "How it was measured.",
        "a &lt;path&gt;", "0.33", "&lt;/pre&gt;&lt;script&gt;", "\\x1b[0m"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  for (const char* part : {"<script", "http-equiv=\"refresh\"", "src=", "@import", "url(", "<link", "rgb("}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
  expect_no_child();
}

TEST_F(FolderTest, PicturesOfHostileWordsAreXml) {
  Report report = small_report();
  Plot& plot = report.sections[0].plots[0];
  plot.title = "<svg onload='x'> & \x01\xff ]]> @a `touch " + (root_ / "touched").string() + "`";
  plot.series[0].label = "stroke='rgb(0,114,178)' <&> {/Bold x} _a^b $c";
  plot.series[1].label = "--> \xEF\xBF\xBF '\"";
  plot.marks = {{20, "<!-- "}};
  const auto written = Folder::open(folder_.string())->write(report);
  ASSERT_TRUE(written) << written.error().message;
  ASSERT_EQ(written->no_plots, "");
  EXPECT_FALSE(fs::exists(root_ / "touched"));
  const std::string check =
      "python3 -c 'import sys, xml.dom.minidom as m\n"
      "page = open(sys.argv[2], encoding=\"utf-8\").read()\n"
      "m.parse(sys.argv[1])\n"
      "m.parseString(page[page.index(\"<svg\"):page.index(\"</svg>\") + 6].encode())' ";
  EXPECT_EQ(
      std::system((check + (folder_ / "latency.svg").string() + ' ' + (folder_ / "report.html").string()).c_str()), 0);
  const std::string page = content(folder_ / "report.html");
  EXPECT_THAT(page, Not(HasSubstr("<svg onload")));
  EXPECT_THAT(page, HasSubstr("<text>stroke='rgb(0,114,178)'"));  // a label may say what an attribute says
}

TEST_F(FolderTest, DegeneratePlotsAreDrawn) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<std::pair<double, double>>> all = {{},
                                                                   {{1, 1}},
                                                                   {{1, 5}, {2, 5}, {3, 5}},
                                                                   {{1, nan}, {2, inf}, {3, -inf}},
                                                                   {{0, 0}, {1, 1}},
                                                                   {{1, -1e308}, {2, 1e308}},
                                                                   {{1, 0}}};
  Report report;
  report.sections.resize(1);
  int number = 0;
  for (const bool log : {false, true}) {
    for (const auto& points : all) {
      for (const auto style : {Series::Style::line, Series::Style::points, Series::Style::marked, Series::Style::model,
                               Series::Style::steps}) {
        Plot plot;
        plot.name = "plot" + std::to_string(number++);
        plot.x = {"x", log};
        plot.y = {"y", log, log};
        plot.series = {{"only", style, points}, {"", style, {}}};
        report.sections[0].plots.push_back(plot);
      }
    }
  }
  report.sections[0].plots.push_back({});  // with nothing at all
  report.sections[0].plots.back().name = "nothing";
  const auto written = Folder::open(folder_.string())->write(report);
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(written->no_plots, "");
  for (const Plot& plot : report.sections[0].plots)
    EXPECT_TRUE(fs::exists(folder_ / (plot.name + ".png"))) << plot.name;
  EXPECT_THAT(content(folder_ / "plot0.svg"), HasSubstr("no points to show"));
  EXPECT_THAT(content(folder_ / "report.html"), HasSubstr("3 points are not shown: not finite."));
  EXPECT_THAT(content(folder_ / "report.html"),
              HasSubstr("1 point is not shown: not finite, or not above 0 on a logarithmic axis."));
}

TEST_F(FolderTest, WithoutGnuplotNumbersStandInThePage) {
  const auto folder = Folder::open(folder_.string());
  ASSERT_TRUE(folder->write(small_report()));
  ASSERT_TRUE(fs::exists(folder_ / "latency.png"));
  set_gnuplot("");
  const auto written = folder->write(small_report());
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_THAT(written->no_plots, HasSubstr("gnuplot is not installed"));
  EXPECT_EQ(written->no_plots.find('\n'), std::string::npos);
  EXPECT_THAT(written->files, testing::ElementsAre("rows.csv", "latency.data.csv", "report.json", "report.html"));
  EXPECT_FALSE(fs::exists(folder_ / "latency.png")) << "an earlier run's picture would show other numbers";
  EXPECT_FALSE(fs::exists(folder_ / "latency.svg"));
  const std::string page = content(folder_ / "report.html");
  EXPECT_THAT(page, HasSubstr("gnuplot is not installed"));
  EXPECT_THAT(page, HasSubstr("<td class=\"t\">with a cache</td><td>16</td><td>1.25</td>"));
  EXPECT_THAT(page, Not(HasSubstr("latency.png")));
  expect_no_child();
}

TEST_F(FolderTest, AGnuplotThatFailsIsQuoted) {
  struct Case {
    const char *script, *says;
  };
  for (const auto& [script, says] :
       {Case{"echo 'some context' >&2; echo '  line 3: no such \033[31mthing' >&2; exit 3",
             "gnuplot failed with exit code 3: line 3: no such \\x1b[31mthing"},
        Case{"exit 1", "gnuplot failed with exit code 1"}, Case{"kill -9 $$", "gnuplot was ended by signal 9"},
        Case{"exit 0", "gnuplot made no picture"},
        Case{"echo '<?xml version=\"1.0\"?><svg>'", "gnuplot made no picture"},
        Case{"exec 0<&-; echo '<svg></svg>'; exit 0", "gnuplot made no picture"},
        // The other picture is a whole one, so that it is this that must be refused.
        Case{R"(if /bin/grep -q 'terminal svg'; then echo '<?xml version="1.0"?></svg>'
                else printf '\211PNG\r\n\032\nIEND\256B`\202'; fi)",
             "gnuplot made no picture"}}) {
    set_gnuplot(script);
    const auto written = Folder::open(folder_.string())->write(small_report());
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_THAT(written->no_plots, HasSubstr(says));
    EXPECT_EQ(written->no_plots.find('\n'), std::string::npos);
    EXPECT_TRUE(has_page());
    EXPECT_FALSE(fs::exists(folder_ / "latency.svg"));
    expect_no_child();
  }
}

TEST_F(FolderTest, AGnuplotThatCannotBeStartedIsNamed) {
  set_gnuplot("");
  std::ofstream(root_ / "bin" / "gnuplot") << "not a program";
  fs::permissions(root_ / "bin" / "gnuplot", fs::perms::owner_read);
  const auto written = Folder::open(folder_.string())->write(small_report());
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_THAT(written->no_plots, HasSubstr("gnuplot cannot be started"));
  EXPECT_TRUE(has_page());
}

TEST_F(FolderTest, AnInterruptedReportHasNoPage) {
  const auto folder = Folder::open(folder_.string());
  for (int stop_at = 0; stop_at < 6; ++stop_at) {  // at each file; gnuplot asks too, so that later ones are met as well
    ASSERT_TRUE(folder->write(small_report()));
    ASSERT_TRUE(has_page());
    int asked = 0;
    const auto written = folder->write(small_report(), [&] { return asked++ < stop_at; });
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Code::interrupted);
    expect_no_page();
    expect_no_child();
  }
}

TEST_F(FolderTest, AGnuplotThatHangsEndsWithTheReport) {
  set_gnuplot("echo begun > " + (root_ / "begun").string() + "; exec /bin/sleep 1000");
  const auto written =
      Folder::open(folder_.string())->write(small_report(), [&] { return !fs::exists(root_ / "begun"); });
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::interrupted);
  expect_no_page();
  expect_no_child();
}

TEST_F(FolderTest, AGnuplotThatClosesItsOutputAndLivesEndsWithTheReport) {
  // The while before it tells is for those who take the end of its output for its own.
  set_gnuplot("exec >&- 2>&-; /bin/sleep 0.3; echo begun > " + (root_ / "begun").string() + "; exec /bin/sleep 1000");
  const auto written =
      Folder::open(folder_.string())->write(small_report(), [&] { return !fs::exists(root_ / "begun"); });
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::interrupted);
  expect_no_page();
  expect_no_child();
}

TEST_F(FolderTest, WhatGnuplotSaysAfterItsOutputIsCounted) {
  set_gnuplot("exec >&-; /bin/sleep 0.1; echo 'too late' >&2; exec 2>&-; /bin/sleep 0.1; exit 4");
  const auto written = Folder::open(folder_.string())->write(small_report());
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_THAT(written->no_plots, HasSubstr("gnuplot failed with exit code 4: too late"));
  expect_no_child();
}

TEST_F(FolderTest, AFileThatCannotBeWrittenLeavesNoPage) {
  set_gnuplot("");  // with its picture the page would be larger than without
  const auto folder = Folder::open(folder_.string());
  ASSERT_TRUE(folder->write(small_report()));
  // The page is the largest file. A file size limit refuses as a full disk does, in the midst of a write.
  const auto size = fs::file_size(folder_ / "report.html");
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  for (const std::uintmax_t limit : {std::uintmax_t{0}, std::uintmax_t{40}, size - 1, size}) {
    const rlimit small{limit, old.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto written = folder->write(small_report());
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
    if (limit == size) {
      EXPECT_TRUE(written);
      EXPECT_EQ(fs::file_size(folder_ / "report.html"), size);
      continue;
    }
    ASSERT_FALSE(written) << limit;
    EXPECT_EQ(written.error().code, Code::io);
    EXPECT_THAT(written.error().message, HasSubstr("File too large"));
    if (limit == size - 1) {
      EXPECT_THAT(written.error().message, HasSubstr("report.html"));
    }
    expect_no_page();
  }
}

TEST_F(FolderTest, OpenTakesTheOldPageAway) {
  ASSERT_TRUE(Folder::open(folder_.string())->write(small_report()));
  ASSERT_TRUE(has_page());
  const auto again = Folder::open(folder_.string());
  ASSERT_TRUE(again);
  EXPECT_FALSE(has_page());
  EXPECT_THAT(names(), Contains("latency.png"));  // the rest stays until it is written anew
}

TEST_F(FolderTest, OpenRefusesWhatIsNoFolder) {
  const auto refused = [](const std::string& path, const char* why) {
    const auto folder = Folder::open(path);
    ASSERT_FALSE(folder) << path;
    EXPECT_THAT(folder.error().message, HasSubstr(why));
    EXPECT_THAT(folder.error().message, HasSubstr(path));
    EXPECT_EQ(folder.error().message.find('\n'), std::string::npos);
  };
  std::ofstream(root_ / "file") << "x";
  refused((root_ / "file").string(), "Not a directory");
  refused((root_ / "file" / "x").string(), "Not a directory");
  refused((root_ / "none" / "x").string(), "No such file or directory");
  EXPECT_FALSE(fs::exists(root_ / "none"));
  refused("", "empty");
  refused(std::string(5000, 'x'), "File name too long");
  fs::create_symlink(root_ / "none", root_ / "link");
  refused((root_ / "link").string(), "No such file or directory");
  fs::create_directories(folder_ / "report.html" / "x");
  refused(folder_.string(), "cannot be taken away");
}

TEST_F(FolderTest, OpenRefusesAFolderWithoutPermission) {
  fs::create_directory(folder_);
  fs::permissions(root_, fs::perms::all);
  fs::permissions(folder_,
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // the system refuses root nothing
    constexpr uid_t kNobody = 65534;
    if (::getuid() == 0 && ::setuid(kNobody) != 0) ::_exit(2);
    const auto folder = Folder::open(folder_.string());
    const bool right = !folder && folder.error().code == Code::io &&
                       folder.error().message.find("Permission denied") != std::string::npos;
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(FolderTest, NamesThatAreNoFilesOrAreTwiceAreRefused) {
  const auto folder = Folder::open(folder_.string());
  for (const char* name : {"", "../x", "a/b", "a b", "a.b", "ä"}) {
    Report report = small_report();
    report.sections[0].plots[0].name = name;
    EXPECT_EQ(folder->write(report).error().code, Code::invalid_argument) << name;
    report = small_report();
    report.sections[0].tables[0].name = name;
    EXPECT_EQ(folder->write(report).error().code, Code::invalid_argument) << name;
  }
  Report report = small_report();
  report.sections.push_back(report.sections[0]);
  EXPECT_THAT(folder->write(report).error().message, HasSubstr("twice"));
  report = small_report();
  report.sections[0].tables[0].name = "latency";  // a table and a plot may share one: their files differ
  EXPECT_TRUE(folder->write(report));
}

}  // namespace
}  // namespace stet::report
