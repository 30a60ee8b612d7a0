//! The listings of the book, compiled and run: one struct per chapter.

#[doc = include_str!("../../autobwd/book/src/getting-started.md")]
pub struct GettingStarted;

#[doc = include_str!("../../autobwd/book/src/programs-and-gradients.md")]
pub struct ProgramsAndGradients;

#[doc = include_str!("../../autobwd/book/src/training.md")]
pub struct Training;

#[doc = include_str!("../../autobwd/book/src/fine-tuning.md")]
pub struct FineTuning;

#[doc = include_str!("../../autobwd/book/src/control-flow.md")]
pub struct ControlFlow;

#[doc = include_str!("../../autobwd/book/src/eager.md")]
pub struct EagerMode;

#[doc = include_str!("../../autobwd/book/src/writing-operators.md")]
pub struct WritingOperators;

#[doc = include_str!("../../autobwd/book/src/debugging.md")]
pub struct Debugging;

#[doc = include_str!("../../autobwd/book/src/performance.md")]
pub struct Performance;

#[doc = include_str!("../../autobwd/book/src/devices.md")]
pub struct Devices;

#[doc = include_str!("../../autobwd/book/src/from-python.md")]
pub struct FromPython;

#[doc = include_str!("../../autobwd/book/src/coming-from-others.md")]
pub struct ComingFromOthers;

#[doc = include_str!("../../autobwd/book/src/coming-from-paddlepaddle.md")]
pub struct ComingFromPaddlePaddle;

#[doc = include_str!("../../autobwd/book/src/words-of-the-documents.md")]
pub struct WordsOfTheDocuments;

#[doc = include_str!("../../autobwd/book/src/tutorials/own-operator.md")]
pub struct OwnOperator;

#[doc = include_str!("../../autobwd/book/src/tutorials/tabular.md")]
pub struct Tabular;

#[doc = include_str!("../../autobwd/book/src/tutorials/images.md")]
pub struct Images;

#[doc = include_str!("../../autobwd/book/src/tutorials/text.md")]
pub struct Text;

#[doc = include_str!("../../autobwd/book/src/tutorials/from-pytorch.md")]
pub struct FromPyTorch;

#[doc = include_str!("../../autobwd/book/src/tutorials/from-paddle.md")]
pub struct FromPaddle;
