//! The public interface of the core, as a list: what changes there, changes for users.
//!
//! `UPDATE=1 cargo test -p autobwd-tests --test framework public_interface` rewrites the list.

use std::{collections::BTreeSet, fs};

use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, Signature, TraitItem, UseTree, Visibility};

use crate::support::sources::{files, root};

/// The names that a `use` brings in.
fn names(tree: &UseTree, found: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => names(&path.tree, found),
        UseTree::Name(name) => _ = found.insert(name.ident.to_string()),
        UseTree::Rename(rename) => _ = found.insert(rename.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| names(tree, found)),
        UseTree::Glob(_) => {}
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_hidden(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| attr.to_token_stream().to_string().replace(' ', "") == "#[doc(hidden)]")
}

fn parse(file: &std::path::Path) -> Vec<Item> {
    syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap().items
}

/// The core's exported names, without the names of `__private`, and the names of `__private`.
fn exported() -> (BTreeSet<String>, BTreeSet<String>) {
    let source = root().join("autobwd/core/src");
    let (mut public, mut private) = Default::default();
    let uses = |items: &[Item], found: &mut BTreeSet<String>| {
        for item in items {
            match item {
                Item::Use(item) if is_public(&item.vis) => names(&item.tree, found),
                Item::Fn(item) if is_public(&item.vis) => _ = found.insert(item.sig.ident.to_string()),
                Item::Struct(item) if is_public(&item.vis) => _ = found.insert(item.ident.to_string()),
                Item::Enum(item) if is_public(&item.vis) => _ = found.insert(item.ident.to_string()),
                Item::Trait(item) if is_public(&item.vis) => _ = found.insert(item.ident.to_string()),
                _ => {}
            }
        }
    };
    let items = parse(&source.join("lib.rs"));
    uses(&items, &mut public);
    for item in &items {
        let Item::Mod(module) = item else { continue };
        match &module.content {
            Some((_, items)) if module.ident == "__private" => uses(items, &mut private),
            None if is_public(&module.vis) => {
                let name = module.ident.to_string();
                let folder = source.join(&name).join("mod.rs");
                let file = if folder.exists() { folder } else { source.join(format!("{name}.rs")) };
                uses(&parse(&file), &mut public);
            }
            _ => {}
        }
    }
    (public, private)
}

/// Tokens as a reader writes them.
fn tidy(tokens: impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in [
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" ,", ","),
        (" ::", "::"),
        (":: ", "::"),
        ("& ", "&"),
        (" :", ":"),
        (" ;", ";"),
        ("->(", "-> ("),
        ("[ ", "["),
        (" ]", "]"),
        (",)", ")"),
        ("' ", "'"),
    ] {
        text = text.replace(from, to);
    }
    text
}

/// `get(self) -> Option<usize>`
fn signature(signature: &Signature) -> String {
    tidy(signature).replacen("fn ", "", 1)
}

fn fields(of: &str, fields: &Fields, all_public: bool, found: &mut Vec<String>) {
    for (i, field) in fields.iter().enumerate() {
        if (all_public || is_public(&field.vis)) && !is_hidden(&field.attrs) {
            let name = field.ident.as_ref().map_or(i.to_string(), ToString::to_string);
            found.push(format!("{of}.{name}: {}", tidy(&field.ty)));
        }
    }
}

/// The lines of an item, if it is exported.
fn describe(item: &Item, public: &BTreeSet<String>, found: &mut Vec<String>) {
    let is_listed = |visibility: &Visibility, name: &syn::Ident, attrs: &[Attribute]| {
        is_public(visibility) && public.contains(&name.to_string()) && !is_hidden(attrs)
    };
    match item {
        Item::Struct(item) if is_listed(&item.vis, &item.ident, &item.attrs) => {
            found.push(format!("{}{}: struct", item.ident, tidy(&item.generics)));
            fields(&item.ident.to_string(), &item.fields, false, found);
        }
        Item::Enum(item) if is_listed(&item.vis, &item.ident, &item.attrs) => {
            found.push(format!("{}{}: enum", item.ident, tidy(&item.generics)));
            for variant in item.variants.iter().filter(|variant| !is_hidden(&variant.attrs)) {
                found.push(format!("{}::{}", item.ident, variant.ident));
                fields(&format!("{}::{}", item.ident, variant.ident), &variant.fields, true, found);
            }
        }
        Item::Trait(item) if is_listed(&item.vis, &item.ident, &item.attrs) => {
            found.push(format!("{}{}: trait", item.ident, tidy(&item.generics)));
            for of in &item.items {
                match of {
                    TraitItem::Fn(function) if !is_hidden(&function.attrs) => {
                        found.push(format!("{}::{}", item.ident, signature(&function.sig)));
                    }
                    TraitItem::Const(of) => found.push(format!("{}::{}: const", item.ident, of.ident)),
                    TraitItem::Type(of) => found.push(format!("{}::{}: type", item.ident, of.ident)),
                    _ => {}
                }
            }
        }
        Item::Fn(item) if is_listed(&item.vis, &item.sig.ident, &item.attrs) => {
            found.push(signature(&item.sig));
        }
        Item::Const(item) if is_listed(&item.vis, &item.ident, &item.attrs) => {
            found.push(format!("{}: {}", item.ident, tidy(&item.ty)));
        }
        Item::Type(item) if is_listed(&item.vis, &item.ident, &item.attrs) => {
            found.push(format!("{} = {}", item.ident, tidy(&item.ty)));
        }
        Item::Macro(item) if item.attrs.iter().any(|attr| attr.path().is_ident("macro_export")) => {
            found
                .extend(item.ident.iter().filter(|_| !is_hidden(&item.attrs)).map(|name| format!("{name}!")));
        }
        Item::Impl(item) if item.trait_.is_none() && !is_hidden(&item.attrs) => {
            let syn::Type::Path(path) = &*item.self_ty else { return };
            let Some(of) = path.path.segments.last().map(|last| last.ident.to_string()) else { return };
            for function in item.items.iter().filter(|_| public.contains(&of)) {
                match function {
                    ImplItem::Fn(function) if is_public(&function.vis) && !is_hidden(&function.attrs) => {
                        found.push(format!("{of}::{}", signature(&function.sig)));
                    }
                    ImplItem::Const(constant) if is_public(&constant.vis) && !is_hidden(&constant.attrs) => {
                        found.push(format!("{of}::{}: {}", constant.ident, tidy(&constant.ty)));
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

fn sources() -> Vec<Item> {
    let mut found = vec![];
    files(&root().join("autobwd/core/src"), &["rs"], &mut found);
    found.retain(|file| !file.ends_with("tests.rs"));
    found.iter().flat_map(|file| parse(file)).collect()
}

#[test]
fn public_interface_of_the_core_is_as_listed() {
    let ((public, _), mut found) = (exported(), vec![]);
    sources().iter().for_each(|item| describe(item, &public, &mut found));
    found.sort();
    assert!(found.len() > 500, "{found:#?}");
    autobwd_tests::compare("framework/public_interface.txt", &(found.join("\n") + "\n"));
}

/// Whatever the packages share is in `__private`: nothing else is public and hidden, except for macros that other
/// macros call.
#[test]
fn hidden_items_are_in_private_modules() {
    let core = root().join("autobwd/core/src");
    let mut found = vec![];
    files(&core, &["rs"], &mut found);
    for file in found {
        let source = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = source.lines().map(str::trim).collect();
        for (i, _) in lines.iter().enumerate().filter(|(_, line)| **line == "#[doc(hidden)]") {
            let hidden = lines[i + 1..].iter().find(|line| !line.starts_with("#[")).unwrap();
            let allowed = hidden.starts_with("macro_rules! __") || *hidden == "pub mod __private {";
            assert!(allowed, "`{hidden}` of {} is hidden, but public outside of `__private`", file.display());
        }
    }
    // The macro names these, which are public as well.
    let (public, private) = exported();
    let both: Vec<_> = public.intersection(&private).collect();
    assert!(both.len() > 20, "{both:?}");
}

#[test]
fn facade_exports_at_most_60_names_at_its_root() {
    let mut found = BTreeSet::new();
    for item in parse(&root().join("autobwd/src/lib.rs")) {
        match item {
            Item::Use(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                names(&item.tree, &mut found)
            }
            Item::Mod(item) if is_public(&item.vis) => _ = found.insert(item.ident.to_string()),
            _ => {}
        }
    }
    assert!((40..=60).contains(&found.len()), "{} names: {found:?}", found.len());
}
