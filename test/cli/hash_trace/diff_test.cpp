// train --hash-trace and `lockstep diff`: runs that are the same, runs that are not, and files that
// are no hash traces.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/sample.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::Ended;
using lockstep::test::TemporaryFolder;

namespace {

using Words = std::vector<std::string>;

Ended train(const std::string& file, const Words& options) {
  Words words = {"--hash-trace", file};
  if (std::ranges::find(options, "--epochs") == options.end())
    words.insert(words.end(), {"--epochs", "1"});
  words.insert(words.end(), options.begin(), options.end());
  return test::run(test::sample_command("train_mlp", words));
}

void trained(const std::string& file, const Words& options) {
  const Ended ended = train(file, options);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
}

Ended diff(const Words& files) {
  Words words = {LOCKSTEP_BIN_DIR "/lockstep_diff"};
  words.insert(words.end(), files.begin(), files.end());
  return test::run(words);
}

void expect(const Ended& ended, int code, const Words& says) {
  CAPTURE(ended.out);
  CAPTURE(ended.err);
  CHECK(ended.code == code);
  CHECK(ended.err == "");
  for (const std::string& text : says) {
    CAPTURE(text);
    CHECK(contains(ended.out, text));
  }
}

std::string text_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const std::string& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

}  // namespace

TEST_CASE("hash trace: two runs of one command are the same, those of another one are not") {
  const TemporaryFolder folder;
  const std::string a = folder / "a", b = folder / "b";
  trained(a, {"--ranks", "2"});
  trained(b, {"--ranks", "2", "--bucket-cap-mb", "0.01"});
  const Ended same = diff({a, b});
  CHECK(same.out == "no difference in 792 records, up to step 24, on 2 ranks\n");
  expect(same, 0, {});

  CHECK(contains(text_of(a), "\n1\tforward\tlinear_relu\t0.weight\tf32\t(32, 128)\trank\t"));
  CHECK(contains(text_of(a), "\n1\tbackward\tlinear_relu\t2.weight\tf32\t(32, 64)\trank\t"));

  trained(b, {"--ranks", "2", "--seed", "1"});
  expect(diff({a, b}), 1,
         {"first difference: step 1, record 1, rank 0\n",
          "parameter '0.weight', as linear_relu uses it", "nothing was compared before it\n",
          "with --hash-values 1:1 as well\n"});
  trained(b, {"--ranks", "2", "--no-shuffle"});
  expect(diff({a, b}), 1,
         {"step 1, record 3, rank 0\n", "  input of linear_relu ('0.weight'), f32 ("});
  trained(b, {"--ranks", "2", "--lr", "0.05"});
  expect(diff({a, b}), 1,
         {"step 1, record 28, rank 0\n", "  parameter '4.bias' after the step, f32 (10,)\n",
          "27 records before it are equal, the last: gradient of '0.weight', as the optimizer "});
  trained(b, {"--ranks", "2", "--layers", "64,128,32,10"});
  expect(diff({a, b}), 1,
         {"step 1, record 5, rank 0\n", "  the runs do other things here:\n",
          "a  step 1: parameter '2.weight', as linear_relu uses it, f32 (64, 128)\n",
          "b  step 1: parameter '2.weight', as linear_relu uses it, f32 (32, 128)\n"});
}

TEST_CASE("hash trace: with lanes, any numbers of ranks have the same results") {
  const TemporaryFolder folder;
  const Words lanes = {"--lanes", "8", "--batch", "100", "--ranks"};
  const auto with = [&](const char* ranks, Words more = {}) {
    more.insert(more.end(), lanes.begin(), lanes.end());
    more.emplace_back(ranks);
    return more;
  };
  const std::string one = folder / "1", other = folder / "other";
  trained(one, with("1"));
  for (const char* ranks : {"2", "3", "5"}) {
    trained(other, with(ranks));
    expect(
        diff({one, other}), 0,
        {fmt::format("no difference in 375 records, up to step 15, on 1 and {} ranks\n", ranks),
         "not compared: 15 forward, 15 backward, 90 gradient records that belong to one rank\n"});
  }
  // Other kernels: the first product differs, in the lane where the samples begin.
  const Words layer = {"--layers", "64,10"};
  const auto of_layer = [&](const char* ranks, Words more) {
    more.insert(more.end(), layer.begin(), layer.end());
    return with(ranks, more);
  };
  trained(one, of_layer("1", {}));
  trained(other, of_layer("3", {"--precision", "bf16"}));
  expect(diff({one, other}), 1,
         {"first difference: step 1, record 4, lane 0\n",
          "  output of linear ('0.weight'), f32 (100, 10)\n", "--hash-values 1:4 as well\n"});
  trained(one, of_layer("1", {"--hash-values", "1:4"}));
  trained(other, of_layer("3", {"--hash-values", "1:4", "--precision", "bf16"}));
  expect(
      diff({one, other}), 1,
      {"step 1, record 4, lane 0\n", "  at [0, 0]: ", " ulps apart; ", " of 1000 elements differ\n",
       "3 records before it are equal, the last: input of linear ('0.weight')\n"});
  // With other lanes, or none, what belongs to lanes cannot be compared.
  trained(one, with("1"));
  trained(other, {"--batch", "100", "--ranks", "1", "--lanes", "4"});
  expect(diff({one, other}), 1, {"not compared: 1 input, 3 forward records that have other lanes"});
}

TEST_CASE("hash trace: without lanes the ranks' sums differ first where they are added") {
  const TemporaryFolder folder;
  const auto file = [&](int ranks) { return folder / std::to_string(ranks); };
  for (const int ranks : {1, 2, 3})
    trained(file(ranks), {"--ranks", std::to_string(ranks), "--batch", std::to_string(96 / ranks)});
  for (const auto& [a, b] : {std::pair(1, 2), std::pair(1, 3), std::pair(2, 3)})
    expect(diff({file(a), file(b)}), 1,
           {"first difference: step 1, record 22\n",
            "  gradient of '4.bias', as the optimizer takes it, f32 (10,)\n",
            "not compared: 1 input, 4 forward, 4 backward, 6 gradient records that belong to one "
            "rank\n"});
}

TEST_CASE("hash trace: a run that goes on stands beside the one that it goes on with") {
  const TemporaryFolder folder;
  const std::string whole = folder / "whole", rest = folder / "rest";
  const Words options = {"--lanes",
                         "4",
                         "--ranks",
                         "2",
                         "--batch",
                         "100",
                         "--checkpoint",
                         folder / "c",
                         "--checkpoint-every",
                         "7",
                         "--keep",
                         "3"};
  trained(whole, options);
  std::filesystem::rename(folder / "c.2", folder / "c");
  Words again = options;
  again.emplace_back("--resume");
  trained(rest, again);
  expect(diff({whole, rest}), 0,
         {"whole begins at step 1, ", "rest at step 8: compared from step 8 on\n",
          "no difference in 264 records, up to step 15, on 2 ranks\n"});
}

TEST_CASE("hash trace: a file that is cut off is read up to its cut, and is not equal") {
  const TemporaryFolder folder;
  const std::string a = folder / "a", cut = folder / "cut";
  trained(a, {"--ranks", "1"});
  const std::string text = text_of(a);
  const std::size_t begin = text.find('\n') + 1, line = text.find('\n', begin) + 1;
  for (const std::size_t size : {begin, line, line + 30, text.size() / 2, text.size() - 1}) {
    write(cut, text.substr(0, size));
    const Ended ended = diff({a, cut});
    expect(ended, 1, {"no difference in ", "cut is cut off "});
    CHECK(contains(ended.out, "goes on\n") == (size < text.size() - 1));
    CHECK(diff({cut, cut}).code == 1);
  }
  write(cut, text.substr(0, line));
  expect(diff({a, cut}), 1,
         {"no difference in 1 record, up to step 1, on 1 rank\n",
          "cut is cut off after record 1 of step 1, "});
  trained(cut, {"--ranks", "1", "--epochs", "2"});
  expect(diff({a, cut}), 1, {"a ends after record 33 of step 47, ", "cut goes on\n"});
}

TEST_CASE("hash trace: diff refuses what is no hash trace, in one line that names the file") {
  const TemporaryFolder folder;
  const std::string a = folder / "a", bad = folder / "bad";
  trained(a, {"--ranks", "2"});
  const std::string text = text_of(a);
  const std::size_t begin = text.find('\n') + 1;
  const auto refused = [&](const Words& files, const std::string& why) {
    const Ended ended = diff(files);
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.out == "");
    CHECK(test::lines_of(ended.err).size() == 1);
    CHECK(contains(ended.err, why));
  };
  refused({a}, "B is required");
  refused({a, folder / "nosuch"}, "nosuch': No such file or directory");
  refused({a, folder.path().string()}, "it is a folder");
  refused({a, folder / "a.1"}, "a.1' is rank 1's file: name that of rank 0");
  const auto refused_text = [&](const std::string& bytes, const std::string& why) {
    write(bad, bytes);
    std::filesystem::copy_file(folder / "a.1", folder / "bad.1",
                               std::filesystem::copy_options::overwrite_existing);
    refused({a, bad}, "bad' is " + why);
  };
  refused_text("", "empty");
  refused_text(text.substr(0, 30), "cut off in its first line");
  refused_text("{}\n", "not a hash trace");
  refused_text("lockstep hash trace 2" + text.substr(21),
               "a hash trace of version 2; this program");
  refused_text(text.substr(0, begin) + "x" + text.substr(begin), "damaged: line 2 has 'x1' for a ");
  refused_text(text.substr(0, begin) + "end\t7\n", "damaged: line 2 counts 7 records, there are 0");
  refused_text(text.substr(0, begin) + "1\tforward\n", "damaged: line 2 has not 8 fields");
  write(bad, text);
  trained(a, {"--ranks", "2"});  // another run: bad.1 is not of it
  std::filesystem::copy_file(folder / "a.1", folder / "bad.1",
                             std::filesystem::copy_options::overwrite_existing);
  refused({a, bad}, "are not of the same run");
  std::filesystem::remove(folder / "bad.1");
  refused({a, bad}, "bad.1': No such file or directory");
}

TEST_CASE("hash trace: train refuses what makes no sense") {
  const TemporaryFolder folder;
  const auto refused = [&](const Words& options, const std::string& why) {
    const Ended ended = train(folder / "a", options);
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(contains(ended.err, why));
    CHECK_FALSE(std::filesystem::exists(folder / "a"));
  };
  for (const char* text : {"3", "3:", ":3", "0:1", "1:0", "1:2:3", "1:x"})
    refused({"--hash-values", text}, fmt::format("--hash-values '{}' is not STEP:RECORD", text));
  refused({"--json", folder / "a"}, "are the same file");
  refused({"--survive", "--lanes", "8"}, "--survive and --hash-trace");
  const Ended ended = test::run(test::sample_command("train_mlp", {"--hash-values", "1:1"}));
  CHECK(ended.code == 2);
  CHECK(contains(ended.err, "--hash-values needs --hash-trace FILE"));
}
