//! Look-ups of slots and attributes during constant evaluation.

use super::{AttrDef, SlotDef, const_for::const_for, const_text::is_joined};

/// The slot whose name followed by `suffix` is `name`.
pub(crate) const fn find_slot<'a>(slots: &'a [SlotDef], name: &str, suffix: &str) -> Option<&'a SlotDef> {
    const_for!(slot in slots => {
        if is_joined(name, slot.name, suffix) {
            return Some(slot);
        }
    });
    None
}

/// The slot whose field after `prefix` is `field`.
pub(super) const fn find_field<'a>(slots: &'a [SlotDef], prefix: &str, field: &str) -> Option<&'a SlotDef> {
    const_for!(slot in slots => {
        if is_joined(field, prefix, slot.field) {
            return Some(slot);
        }
    });
    None
}

/// Whether there is a slot named `name` followed by `suffix`.
pub(crate) const fn has_slot(slots: &[SlotDef], name: &str, suffix: &str) -> bool {
    const_for!(slot in slots => {
        if is_joined(slot.name, name, suffix) {
            return true;
        }
    });
    false
}

/// The attribute of this name, or with `by_field`, of this field.
pub(crate) const fn find_attr<'a>(attrs: &'a [AttrDef], name: &str, by_field: bool) -> Option<&'a AttrDef> {
    const_for!(attr in attrs => {
        if is_joined(name, if by_field { attr.field } else { attr.name }, "") {
            return Some(attr);
        }
    });
    None
}
