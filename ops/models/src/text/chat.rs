//! Conversations as one text, by the chat template of a model.

use autobwd::{Error, ErrorKind, Result};
use minijinja::{
    Environment, ErrorKind as TemplateErrorKind,
    syntax::SyntaxConfig,
    value::{Serde, Value},
};
use serde_json::{Map, json};

/// The work that a template may do, in the instructions of its engine: templates come from files.
const LARGEST_WORK: u64 = 10_000_000;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who says it: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl ChatMessage {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into() }
    }
}

/// The chat template of a model, in the language Jinja.
#[derive(Clone, Debug)]
pub(super) struct ChatTemplate {
    source: String,
    /// The texts of `bos_token`, `eos_token` and others.
    roles: Map<String, serde_json::Value>,
}

impl ChatTemplate {
    pub(super) fn new(source: String, roles: Map<String, serde_json::Value>) -> ChatTemplate {
        ChatTemplate { source, roles }
    }

    /// A conversation as one text, with the beginning of an answer if that is asked for.
    ///
    /// Templates cannot ask for the date, so that the text does not depend on the day.
    ///
    /// # Errors
    /// Templates that are no Jinja, or refuse the conversation.
    pub(super) fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String> {
        let refused = |e: minijinja::Error| {
            let text = format!("the chat template: {}", e.detail().unwrap_or(&e.to_string()));
            Error::new(ErrorKind::Format, text).caused_by(e)
        };
        // As transformers sets it up.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let mut environment = Environment::new();
        environment.set_syntax(syntax.map_err(refused)?);
        environment.set_fuel(Some(LARGEST_WORK));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(TemplateErrorKind::InvalidOperation, text))
        });
        let message = |message: &ChatMessage| json!({"role": message.role, "content": message.content});
        let mut context = self.roles.clone();
        context.insert("messages".into(), messages.iter().map(message).collect());
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        environment.render_str(&self.source, Value::from(Serde(&context))).map_err(refused)
    }
}
