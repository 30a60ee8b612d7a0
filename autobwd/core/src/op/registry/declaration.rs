//! Checks of an operator's declaration for values that constant evaluation does not know.

use super::OpInfo;
use crate::{AttrDef, Error, ErrorKind, GradKind, OpDesc, Result};

impl OpInfo {
    /// Checks bounds and defaults of attributes, and that the gradient operator has the same defaults.
    ///
    /// # Errors
    /// The first fault, with the operator and its place.
    pub(super) fn check_declaration(&self) -> Result<()> {
        let attrs = self.schema.attrs.iter().try_for_each(AttrDef::check_declaration);
        attrs.and_then(|()| self.check_gradient_defaults()).map_err(|e| {
            let (name, place) = (self.schema.name, self.place());
            Error::new(e.kind(), format!("operator `{name}` by {place}: {}", e.message()))
        })
    }

    fn check_gradient_defaults(&self) -> Result<()> {
        let GradKind::Operator(gradient) = self.grad_kind else { return Ok(()) };
        for attr in gradient.attrs {
            let own = self.schema.attr(attr.name).and_then(|own| own.default);
            let (Some(own), Some(other)) = (own, attr.default) else { continue };
            let (own, other) = (own(), other());
            if own != other {
                let text = format!(
                    "attribute `{}` has the default {own}, but in `{}` it is {other}; both need the same",
                    attr.name, gradient.name
                );
                return Err(Error::new(ErrorKind::Attr, text));
            }
        }
        Ok(())
    }

    /// The description with the defaults of attributes that it leaves out; `None` if it leaves none out.
    pub(super) fn with_defaults(&self, desc: &OpDesc) -> Option<OpDesc> {
        let mut completed = None;
        for attr in self.schema.attrs.iter().filter(|attr| desc.attrs.get(attr.name).is_none()) {
            if let Some(default) = attr.default {
                completed.get_or_insert_with(|| desc.clone()).attrs.set(attr.name, default());
            }
        }
        completed
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Attr, AttrBound, AttrDef, BoundKind, GradKind, Op, OpInfo, OpInfoMap, Schema,
        operators::{Increment, Scale},
    };

    const STEP: AttrDef = Increment::SCHEMA.attrs[0];
    /// As by `min = f64::consts::PI, max = f64::consts::E`, which the macro does not understand.
    const BOUNDS: &[AttrBound] = &[
        AttrBound { kind: BoundKind::Min, limit: || Attr::F64(std::f64::consts::PI), text: "PI" },
        AttrBound { kind: BoundKind::Below, limit: || Attr::F64(std::f64::consts::E), text: "E" },
    ];
    const IMPOSSIBLE: Schema = Schema { attrs: &[AttrDef { bounds: BOUNDS, ..STEP }], ..Increment::SCHEMA };
    const OUTSIDE: AttrDef = AttrDef { bounds: BOUNDS.split_at(1).0, ..STEP };
    const OTHER: Schema =
        Schema { attrs: &[AttrDef { default: Some(|| Attr::F32(2.0)), ..STEP }], ..Increment::SCHEMA };
    const UNKNOWN: AttrDef = AttrDef { default: Some(|| Attr::F32(f32::NAN)), bounds: &[], ..STEP };
    const WITH_NAN: Schema = Schema { attrs: &[UNKNOWN], ..Increment::SCHEMA };
    const ENTRY: OpInfo = OpInfo::pointwise::<Scale>("audit", "1.0");
    static ENTRIES: [OpInfo; 3] = [
        OpInfo { schema: IMPOSSIBLE, ..ENTRY },
        OpInfo { schema: Schema { attrs: &[OUTSIDE], ..Increment::SCHEMA }, ..ENTRY },
        OpInfo { schema: Increment::SCHEMA, grad_kind: GradKind::Operator(&OTHER), ..ENTRY },
    ];

    #[test]
    fn default_of_nan_is_the_same_in_the_gradient_operator() {
        static ENTRY_WITH_NAN: OpInfo =
            OpInfo { schema: WITH_NAN, grad_kind: GradKind::Operator(&WITH_NAN), ..ENTRY };
        assert!(ENTRY_WITH_NAN.check_declaration().is_ok());
    }

    #[test]
    fn registry_checks_values_that_are_no_literals() {
        let messages = [
            "attribute `step`: no value is within `min = PI` and `below = E`",
            "attribute `step`: must be at least 3.141592653589793, is 1",
            "attribute `step` has the default 1.0, but in `increment` it is 2.0; both need the same",
        ];
        for (entry, message) in ENTRIES.iter().zip(messages) {
            let e = OpInfoMap::from_infos([entry]).err().unwrap().to_string();
            assert!(e.starts_with("operator `increment` by audit 1.0 (") && e.ends_with(message), "{e}");
        }
    }
}
