//! What a registry asks of packages, which `cargo publish` would refuse late: read from the manifests, without a build.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use serde_json::Value;

use crate::support::sources::root;

/// The description of a workspace by `cargo metadata`, without dependencies of dependencies.
fn metadata(manifest: &Path) -> Value {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    serde_json::from_slice(&cargo.stdout).unwrap()
}

/// The packages of the workspace that are to be published.
fn published(workspace: &Value) -> impl Iterator<Item = &Value> {
    let packages = workspace["packages"].as_array().into_iter().flatten();
    // `publish = false` is an empty list of registries.
    packages.filter(|package| package["publish"].is_null())
}

fn name(value: &Value) -> &str {
    value["name"].as_str().unwrap()
}

#[test]
fn every_published_package_is_described() {
    let workspace = metadata(&root().join("Cargo.toml"));
    let mut faults = vec![];
    for package in published(&workspace) {
        let fields = [
            "/description",
            "/license",
            "/readme",
            "/rust_version",
            "/keywords/0",
            "/categories/0",
            "/metadata/docs/rs/targets",
        ];
        let missing = fields.iter().filter(|field| package.pointer(field).is_none_or(Value::is_null));
        faults.extend(missing.map(|field| format!("{}: no `{field}`", name(package))));
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let licences =
            ["LICENSE-APACHE", "LICENSE-MIT"].into_iter().filter(|file| !folder.join(file).is_file());
        faults.extend(licences.map(|file| format!("{}: no file `{file}`", name(package))));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn published_packages_depend_on_versions_of_published_packages() {
    let workspace = metadata(&root().join("Cargo.toml"));
    let names: BTreeSet<&str> = published(&workspace).map(name).collect();
    let (mut count, mut faults) = (0, vec![]);
    for package in published(&workspace) {
        let dependencies = package["dependencies"].as_array().unwrap();
        // Those of tests and examples without a version are left out of archives.
        let built = dependencies.iter().filter(|dependency| dependency["kind"] != "dev");
        for dependency in built.filter(|dependency| !dependency["path"].is_null()) {
            count += 1;
            let fault = if !names.contains(name(dependency)) {
                "is not published"
            } else if dependency["req"] == "*" {
                "has no version"
            } else {
                continue;
            };
            faults.push(format!("{}: the dependency `{}` {fault}", name(package), name(dependency)));
        }
    }
    assert!(count > 40, "only {count} dependencies were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn contributing_names_exactly_the_published_packages() {
    let workspace = metadata(&root().join("Cargo.toml"));
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let list = page.split('`').find(|code| code.starts_with("cargo package -p ")).unwrap();
    let named: Vec<&str> = list.split(" -p ").skip(1).collect();
    assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), published(&workspace).map(name).collect());
    assert_eq!(named.len(), published(&workspace).count(), "a package is named twice");
}
