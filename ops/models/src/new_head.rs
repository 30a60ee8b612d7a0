//! New heads of encoders: what a fine-tuning to classes begins with.

use std::collections::BTreeSet;

use autobwd::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

use crate::config::Config;

/// What a head classifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A text or an image.
    Whole,
    Tokens,
}

/// A head whose parameters are drawn, instead of the one in the files.
#[derive(Clone, Debug)]
pub(crate) struct NewHead {
    pub(crate) subject: Subject,
    pub(crate) classes: Vec<String>,
}

/// An encoder: `model_type` of configurations, the scope of its parameters in models with a head, and the architectures
/// that classify texts or images, and tokens.
struct Encoder {
    model_type: &'static str,
    scope: &'static str,
    whole: &'static str,
    tokens: Option<&'static str>,
}

const ENCODERS: [Encoder; 5] = [
    Encoder {
        model_type: "bert",
        scope: "bert",
        whole: "BertForSequenceClassification",
        tokens: Some("BertForTokenClassification"),
    },
    Encoder {
        model_type: "roberta",
        scope: "roberta",
        whole: "RobertaForSequenceClassification",
        tokens: Some("RobertaForTokenClassification"),
    },
    Encoder {
        model_type: "distilbert",
        scope: "distilbert",
        whole: "DistilBertForSequenceClassification",
        tokens: Some("DistilBertForTokenClassification"),
    },
    Encoder {
        model_type: "modernbert",
        scope: "model",
        whole: "ModernBertForSequenceClassification",
        tokens: Some("ModernBertForTokenClassification"),
    },
    Encoder { model_type: "vit", scope: "vit", whole: "ViTForImageClassification", tokens: None },
];

/// The scope of the parameters of an encoder below its head; `None` of other models.
pub(crate) fn encoder_scope(model_type: &str) -> Option<&'static str> {
    ENCODERS.iter().find(|encoder| encoder.model_type == model_type).map(|encoder| encoder.scope)
}

/// Whether a tensor is a part of a head on an encoder with this scope. A pooler is: other heads than classes of texts leave
/// it out.
pub(crate) fn is_of_head(name: &str, scope: &str) -> bool {
    within(name, scope).is_none_or(|rest| rest.starts_with("pooler."))
}

/// The rest of a name in a scope.
fn within<'a>(name: &'a str, scope: &str) -> Option<&'a str> {
    name.strip_prefix(scope)?.strip_prefix('.')
}

impl NewHead {
    /// The head that a configuration describes, if it is one for classes.
    pub(crate) fn of(config: &Config) -> Option<NewHead> {
        let architecture = config.architecture("");
        let subject = |encoder: &Encoder| match () {
            () if encoder.whole == architecture => Some(Subject::Whole),
            () if encoder.tokens == Some(architecture) => Some(Subject::Tokens),
            () => None,
        };
        Some(NewHead { subject: ENCODERS.iter().find_map(subject)?, classes: config.class_names()? })
    }

    /// Puts the head into the configuration of a model.
    ///
    /// # Errors
    /// A model that has no such head; no classes; two classes of one name.
    pub(crate) fn configure(&self, keys: &mut Map<String, Value>) -> Result<()> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Attr, text));
        let model_type = keys.get("model_type").and_then(Value::as_str).unwrap_or("");
        let encoder = ENCODERS.iter().find(|encoder| encoder.model_type == model_type);
        let architecture = encoder.and_then(|encoder| match self.subject {
            Subject::Whole => Some(encoder.whole),
            Subject::Tokens => encoder.tokens,
        });
        let Some(architecture) = architecture else {
            return refuse(format!("a model of type `{model_type}` has no such head for classes"));
        };
        let mut names = BTreeSet::new();
        if let Some(name) = self.classes.iter().find(|name| !names.insert(*name)) {
            return refuse(format!("two classes have the name `{name}`"));
        }
        if names.is_empty() {
            return refuse("a head for classes needs the name of one".into());
        }
        let numbered = || self.classes.iter().enumerate();
        let labels: Map<String, Value> =
            numbered().map(|(number, name)| (number.to_string(), json!(name))).collect();
        let numbers: Map<String, Value> =
            numbered().map(|(number, name)| (name.clone(), json!(number))).collect();
        // The same facts under other keys.
        ["num_labels", "_num_labels", "problem_type"].iter().for_each(|key| drop(keys.remove(*key)));
        for (key, value) in [
            ("architectures", json!([architecture])),
            ("id2label", labels.into()),
            ("label2id", numbers.into()),
        ] {
            keys.insert(key.into(), value);
        }
        Ok(())
    }
}

/// The name that a tensor of the files has below a new head; `None` if it is of another head. Files of an encoder alone,
/// which are not `scoped`, leave its scope out.
pub(crate) fn encoder_name(name: String, scope: &str, is_scoped: bool) -> Option<String> {
    let name = if is_scoped { name } else { format!("{scope}.{name}") };
    (!is_of_head(&name, scope)).then_some(name)
}

/// The modules of a head with these parameters.
#[cfg(feature = "tuning")]
pub(crate) fn head_modules<'a>(names: impl Iterator<Item = &'a str>, scope: &str) -> BTreeSet<String> {
    let modules = names.filter(|name| is_of_head(name, scope));
    let modules = modules.filter_map(|name| within(name, scope).unwrap_or(name).split('.').next());
    modules.map(String::from).collect()
}
