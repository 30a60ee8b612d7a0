//! Texts instead of tokens.

mod chat;
mod generate;
mod stream;
mod tokenizer;

pub use chat::ChatMessage;
pub use generate::GeneratedText;
pub use stream::TextStream;
pub use tokenizer::Tokenizer;
