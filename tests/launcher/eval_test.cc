// Questions, their scores, and an exam against a server that answers by rule.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/client/served_prompts.h"
#include "launcher/eval/examiner.h"
#include "launcher/eval/questions.h"
#include "launcher/eval/score_board.h"
#include "tests/launcher/fake_server.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using testing::FakeServer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Question Ask(const std::string& task, const std::string& content, const std::string& answer) {
  return {task, {{"user", content}}, answer};
}

TEST(QuestionsTest, LinesBecomeQuestions) {
  const auto questions = ParseQuestions(
      "{\"task\":\"sum\",\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
      "{\"role\":\"user\",\"content\":\"1+1?\"}],\"answer\":\"2\"}\n\n"
      "{\"task\":\"hi\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"answer\":\"Hi\"}"
      "\n");
  ASSERT_TRUE(questions.ok()) << questions.status();
  ASSERT_EQ(questions->size(), 2u);
  EXPECT_EQ(questions->front().task, "sum");
  EXPECT_EQ(questions->front().messages[1].content, "1+1?");
  EXPECT_EQ(questions->back().answer, "Hi");
}

TEST(QuestionsTest, ErrorsNameTheLine) {
  const std::string good =
      "{\"task\":\"t\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"answer\":\"a\"}\n";
  for (const auto& [line, complaint] : std::vector<std::pair<std::string, std::string>>{
           {"no json", "not a JSON object"},
           {"{\"messages\":[],\"answer\":\"a\"}", "\"task\""},
           {"{\"task\":\"t\",\"messages\":[],\"answer\":\"a\"}", "\"messages\""},
           {"{\"task\":\"t\",\"messages\":[{\"role\":\"cook\",\"content\":\"q\"}],\"answer\":"
            "\"a\"}",
            "cook"},
           {"{\"task\":\"t\",\"messages\":[7],\"answer\":\"a\"}", "not an object"},
           {"{\"task\":\"t\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}",
            "\"answer\""}}) {
    const auto questions = ParseQuestions(good + line);
    EXPECT_THAT(std::string(questions.status().message()), HasSubstr("line 2: "));
    EXPECT_THAT(std::string(questions.status().message()), HasSubstr(complaint));
  }
  EXPECT_FALSE(ParseQuestions("\n").ok());
}

TEST(QuestionsTest, OnlyTheLastLineOfAReplyCounts) {
  EXPECT_EQ(FinalAnswer("  7+5=12\n4+8+1=13\n132 \n"), "132");
  EXPECT_EQ(FinalAnswer(""), "");
  const Question sum = Ask("sum", "47 + 85?", "7+5=12\n4+8+1=13\n132");
  EXPECT_TRUE(IsRight(sum, "132"));
  EXPECT_TRUE(IsRight(sum, "of course:\n132"));
  EXPECT_FALSE(IsRight(sum, "It is 132"));
  EXPECT_FALSE(IsRight(sum, ""));
}

constexpr char kTemplate[] =
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

TEST(ServedChatTemplateTest, RendersWhatTheServerHas) {
  const FakeServer server(kTemplate);
  const auto connection = *Connection::Open({.server = server.address()});
  const auto served = FetchChatTemplate(*connection);
  ASSERT_TRUE(served.ok()) << served.status();
  ASSERT_TRUE(served->has_value());
  EXPECT_EQ((*served)->RenderTrusted({{"system", "S"}, {"user", "U"}})->text,
            "<s><|system|>S<|end|><|user|>U<|end|><|assistant|>");
}

TEST(ServedChatTemplateTest, NoneIsNoErrorAndABadOneIs) {
  const FakeServer without;
  const auto connection = *Connection::Open({.server = without.address()});
  const auto none = FetchChatTemplate(*connection);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());
  const FakeServer bad("{% if %}");
  const auto to_bad = *Connection::Open({.server = bad.address()});
  EXPECT_THAT(std::string(FetchChatTemplate(*to_bad).status().message()),
              HasSubstr("not understood: line 1"));
}

TEST(ServedChatTemplateTest, WhatATemplateRefusesIsTheRequestsFault) {
  const auto served =
      *ServedChatTemplate::Make("{{ raise_exception('no tools') }}", v1::GetChatTemplateResponse());
  EXPECT_EQ(served.Render({}).status(),
            absl::InvalidArgumentError("the model's chat template refuses this: no tools"));
}

// Of a conversation that ends so.
absl::StatusOr<std::string> RenderToContinue(const std::string& source,
                                             const std::string& content) {
  const auto served = *ServedChatTemplate::Make(source, v1::GetChatTemplateResponse());
  const auto pieces =
      served.RenderToContinue(ConversationOf({{"user", "U"}, {"assistant", content}}));
  if (!pieces.ok()) return pieces.status();
  std::string text;
  for (const TextPiece& piece : *pieces) text += piece.text;
  return text;
}

TEST(ServedChatTemplateTest, AMessageIsContinuedWhereItsContentEnds) {
  const std::string begin = "{% for message in messages %}<{{ message.role }}>";
  const std::string as_it_is = begin + "{{ message.content }}</end>\n{% endfor %}";
  EXPECT_EQ(*RenderToContinue(as_it_is, "One, "), "<user>U</end>\n<assistant>One, ");
  EXPECT_EQ(*RenderToContinue(as_it_is, ""), "<user>U</end>\n<assistant>");
  const std::string cut = begin + "{{ message.content | trim }}</end>\n{% endfor %}";
  EXPECT_EQ(*RenderToContinue(cut, " One, "), "<user>U</end>\n<assistant>One,");
  EXPECT_EQ(*RenderToContinue(cut, ""), "<user>U</end>\n<assistant>");
  // As Python strips it: an ideographic space, and one that does not break.
  EXPECT_EQ(*RenderToContinue(cut, "\u3000One\u00a0"), "<user>U</end>\n<assistant>One");
  for (const char* other : {"{{ messages[0].content }}", "{{ messages[-1].content[3:] }}",
                            "{{ messages[-1].content | upper }}"}) {
    EXPECT_THAT(std::string(RenderToContinue(other, "One, ").status().message()),
                HasSubstr("cannot be continued"))
        << other;
  }
}

v1::GetChatTemplateResponse ThinkingInText(bool in_text = true) {
  v1::GetChatTemplateResponse response;
  response.set_thinks_in_text(in_text);
  return response;
}

// Of a template that ends like this.
v1::Thought ThoughtAfter(const std::string& source, bool in_text = true) {
  const auto served = *ServedChatTemplate::Make(source, ThinkingInText(in_text));
  const auto prompt = served.Render(ConversationOf({{"user", "U</think>"}}));
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  return served.ThoughtAfter(*prompt);
}

TEST(ServedChatTemplateTest, AnAnswerThatHasBegunMayStillThink) {
  const auto served = *ServedChatTemplate::Make("{# </think> #}", ThinkingInText());
  EXPECT_EQ(served.ThoughtWithin("<think>\nI was"), v1::THOUGHT_BEGUN);
  EXPECT_EQ(served.ThoughtWithin("<think>a</think>b<think>"), v1::THOUGHT_BEGUN);
  EXPECT_EQ(served.ThoughtWithin("<think>a</think>b"), v1::THOUGHT_NONE);
  EXPECT_EQ(served.ThoughtWithin("b"), v1::THOUGHT_NONE);
  const auto other = *ServedChatTemplate::Make("", ThinkingInText());
  EXPECT_EQ(other.ThoughtWithin("<think>"), v1::THOUGHT_NONE);
}

TEST(ServedChatTemplateTest, TellsWhetherAThoughtMayFollow) {
  const std::string says = "{{ messages[0].content }}";
  const std::string knows = "{# </think> #}" + says;
  EXPECT_EQ(ThoughtAfter(says + "<think>"), v1::THOUGHT_NONE) << "it never ends";
  EXPECT_EQ(ThoughtAfter(knows + "<|assistant|>"), v1::THOUGHT_ALLOWED);
  EXPECT_EQ(ThoughtAfter(knows + "{{ '<|assistant|>' }}<think>{{ '\n' }}"), v1::THOUGHT_BEGUN);
  EXPECT_EQ(ThoughtAfter(knows + "<|assistant|><think>\n\n</think>\n\n"), v1::THOUGHT_NONE);
  // What somebody says ends nothing.
  EXPECT_EQ(ThoughtAfter("<think>" + knows), v1::THOUGHT_ALLOWED);
  EXPECT_EQ(ThoughtAfter("{% if '</think>' in '' %}{% endif %}"), v1::THOUGHT_ALLOWED);
  // Outputs do not show where it ends.
  EXPECT_EQ(ThoughtAfter(knows + "<think>", /*in_text=*/false), v1::THOUGHT_NONE);
}

TEST(ChatPromptsTest, ThoughtsMayComeBeforeConstrainedOutputs) {
  const FakeServer server(std::string(kTemplate) + "{# </think> #}");
  const auto connection = *Connection::Open({.server = server.address()});
  std::vector<Prompt> prompts = {{"U", {}}};
  ASSERT_TRUE(WriteAsChats(*connection, "", prompts).ok());
  v1::GenerateRequest request;
  SetPrompt(prompts[0], request);
  EXPECT_FALSE(request.has_constraint());
  request.mutable_constraint()->set_regex("a");
  SetPrompt(prompts[0], request);
  EXPECT_EQ(request.constraint().thought(), v1::THOUGHT_ALLOWED);
}

TEST(ChatPromptsTest, AreWhatAUserSays) {
  const FakeServer server(kTemplate);
  const auto connection = *Connection::Open({.server = server.address()});
  std::vector<Prompt> prompts = {{"U", {}}};
  ASSERT_TRUE(WriteAsChats(*connection, "", prompts).ok());
  EXPECT_EQ(prompts[0].shown, "U");
  EXPECT_THAT(prompts[0].token_ids, ElementsAre(1, 2, 1));  // markup, text, markup
  prompts[0].token_ids.clear();
  ASSERT_TRUE(WriteAsChats(*connection, "S", prompts).ok());
  EXPECT_THAT(prompts[0].token_ids, ElementsAre(1, 2, 1, 2, 1));
  EXPECT_THAT(std::string(WriteAsChats(*connection, "", prompts).message()),
              HasSubstr("not for token ids"));
  const FakeServer without;
  const auto to_none = *Connection::Open({.server = without.address()});
  EXPECT_EQ(WriteAsChats(*to_none, "", prompts).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ScoreBoardTest, CountsPerTaskAndInAll) {
  ScoreBoard scores;
  scores.Add(Ask("recall", "Q1", "tiger"), "tiger");
  scores.Add(Ask("recall", "Q2", "lion"), "tiger\nlion");
  scores.Add(Ask("sum", "Q3", "4"), "5");
  EXPECT_EQ(scores.total().num_right, 2);
  const std::string text = scores.ToText(/*show_wrong=*/true);
  EXPECT_THAT(text, HasSubstr("recall                   2       2   100.0 %"));
  EXPECT_THAT(text, HasSubstr("all                      3       2    66.7 %"));
  EXPECT_THAT(text, HasSubstr("Q3"));
  const auto json = scores.ToJson();
  EXPECT_EQ(json["right"], 2);
  EXPECT_EQ(json["tasks"][1]["task"], "sum");
  EXPECT_EQ(json["wrong"][0]["reply"], "5");
}

TEST(ScoreBoardTest, ThresholdsOfTasksThatAreNotThereAreNamed) {
  const std::vector<Question> questions = {{"sum", {}, ""}, {"recall", {}, ""}, {"sum", {}, ""}};
  EXPECT_TRUE(CheckThresholds(*ParseThresholds({"50", "recall=100"}), questions).ok());
  EXPECT_EQ(CheckThresholds(*ParseThresholds({"counting=1"}), questions),
            absl::InvalidArgumentError(
                "there are no questions of task \"counting\", but of recall, sum"));
}

TEST(ScoreBoardTest, MissedThresholdsAreNamed) {
  ScoreBoard scores;
  scores.Add(Ask("recall", "Q1", "tiger"), "tiger");
  scores.Add(Ask("sum", "Q3", "4"), "5");
  EXPECT_THAT(scores.Misses(*ParseThresholds({"50", "recall=100"})), IsEmpty());
  EXPECT_THAT(scores.Misses(*ParseThresholds({"60", "sum=1"})),
              ElementsAre(HasSubstr("all questions: 50.0 % right, wanted 60 %"), HasSubstr("sum")));
  EXPECT_THAT(scores.Misses(*ParseThresholds({"counting=1"})),
              ElementsAre(HasSubstr("no questions of task \"counting\"")));
  for (const char* wrong : {"", "x", "recall=", "recall=101", "-1", "nan"}) {
    EXPECT_FALSE(ParseThresholds({wrong}).ok()) << wrong;
  }
}

class ExamTest : public ::testing::Test {
 protected:
  absl::StatusOr<ScoreBoard> Run(const std::vector<Question>& questions) {
    return Examine(*connection_, questions, {.chat_template = &template_, .concurrency = 3},
                   interrupts_, [this](int64_t done, int64_t right) {
                     num_done_ = done;
                     num_right_ = right;
                   });
  }

  InterruptWatcher interrupts_;
  FakeServer server_;
  ServedChatTemplate template_ =
      *ServedChatTemplate::Make(kTemplate, v1::GetChatTemplateResponse());
  std::unique_ptr<Connection> connection_ = *Connection::Open({.server = server_.address()});
  int64_t num_done_ = 0;
  int64_t num_right_ = 0;
};

TEST_F(ExamTest, ThoughtsAreNoPartOfTheAnswer) {
  template_ =
      *ServedChatTemplate::Make(std::string(kTemplate) + "{# </think> #}", ThinkingInText());
  const auto scores = Run({Ask("sum", "muse:4", "4"), Ask("sum", "muse:4", "5")});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(scores->total().num_right, 1);
  EXPECT_EQ(scores->ToJson()["wrong"][0]["reply"], "4");
}

TEST_F(ExamTest, EveryQuestionIsAskedOnceAndCounted) {
  std::vector<Question> questions;
  for (int i = 0; i < 20; ++i) {
    questions.push_back(Ask("echo", "say:" + std::to_string(i), std::to_string(i % 5)));
  }
  const auto scores = Run(questions);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(scores->total().num_questions, 20);
  EXPECT_EQ(scores->total().num_right, 5);
  EXPECT_EQ(num_done_, 20);
  EXPECT_EQ(num_right_, 5);
  EXPECT_EQ(scores->ToJson()["wrong"][0]["reply"], "5");  // in the order of the questions
}

TEST_F(ExamTest, AFailureNamesTheQuestionAndEndsTheExam) {
  std::vector<Question> questions(9, Ask("echo", "say:1", "1"));
  questions[1].messages[0].content = "refuse";
  const auto scores = Examine(*connection_, questions, {.concurrency = 2}, interrupts_, nullptr);
  EXPECT_THAT(std::string(scores.status().message()), HasSubstr("question 2: "));
}

// Nothing is under way then that would end.
TEST_F(ExamTest, AQuestionThatTheTemplateRefusesEndsTheExam) {
  const ServedChatTemplate refusing =
      *ServedChatTemplate::Make("{{ raise_exception('no') }}", v1::GetChatTemplateResponse());
  const std::vector<Question> questions(2, Ask("echo", "say:1", "1"));
  const auto scores = Examine(*connection_, questions,
                              {.chat_template = &refusing, .concurrency = 1}, interrupts_, nullptr);
  EXPECT_THAT(std::string(scores.status().message()), HasSubstr("question 1: "));
}

}  // namespace
}  // namespace lockstep
