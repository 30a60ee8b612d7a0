//! Texts instead of tokens.

mod chat;
mod generate;
mod stream;
mod tokenizer;
mod transcribe;

pub use chat::ChatMessage;
pub use generate::GeneratedText;
pub use stream::TextStream;
pub use tokenizer::Tokenizer;
pub use transcribe::transcription_prompt;
