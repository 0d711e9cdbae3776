//! The files that build tools and package managers run, or take commands from.
//!
//! Not for decisions about an agent, which may change them in its sandbox: for what leaves it. Must
//! not know what else other programs obey.

use std::sync::LazyLock;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Names at any depth.
const NAMES: &[&str] = &[
    // make and its like
    "{GNUmakefile,Makefile,makefile,*.mk,Justfile,justfile,.justfile,Taskfile.yml,Taskfile.yaml}",
    "{CMakeLists.txt,CMakePresets.json,*.cmake,meson.build,configure,configure.ac,autogen.sh,wscript,SConstruct}",
    "{BUILD,BUILD.bazel,WORKSPACE,MODULE.bazel,.bazelrc,*.bzl}",
    // Rust, C#, Swift, Go, Elixir, Erlang, Haskell, Zig
    "{Cargo.toml,build.rs,*.csproj,*.fsproj,Directory.Build.props,Directory.Build.targets,Package.swift}",
    "{magefile.go,mix.exs,rebar.config,Setup.hs,*.cabal,build.zig}",
    // Python, Ruby, PHP
    "{setup.py,setup.cfg,pyproject.toml,conftest.py,noxfile.py,tox.ini,fabfile.py,tasks.py,sitecustomize.py}",
    "{Gemfile,Rakefile,*.gemspec,Podfile,composer.json}",
    // JavaScript
    "{package.json,deno.json,deno.jsonc,bunfig.toml,binding.gyp,gulpfile.*,Gruntfile.*}",
    "{webpack,vite,vitest,rollup,jest,babel,eslint,prettier,postcss,tailwind,next,nuxt,svelte,astro,playwright,cypress,esbuild,tsup,metro}.config.*",
    "{.eslintrc.js,.eslintrc.cjs,.babelrc.js,.mocharc.js,.mocharc.cjs,.prettierrc.js}",
    // the JVM
    "{build.gradle,build.gradle.kts,settings.gradle,settings.gradle.kts,init.gradle,gradlew,gradlew.bat,gradle-wrapper.properties,gradle-wrapper.jar}",
    "{pom.xml,mvnw,mvnw.cmd,maven-wrapper.properties,build.xml,build.sbt,plugins.sbt,build.sc}",
    // containers
    "{Dockerfile,Dockerfile.*,*.dockerfile,Containerfile,docker-compose*.yml,docker-compose*.yaml,compose.yml,compose.yaml,Vagrantfile,Tiltfile}",
];

static SET: LazyLock<GlobSet> = LazyLock::new(|| {
    let mut set = GlobSetBuilder::new();
    for name in NAMES {
        let glob = GlobBuilder::new(name).literal_separator(true).build();
        set.add(glob.unwrap_or_else(|error| unreachable!("{name}: {error}")));
    }
    set.build().unwrap_or_else(|error| unreachable!("{error}"))
});

/// Whether a file is a script or the configuration of a build, by its path.
pub fn is_build_script(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    SET.is_match(name)
}

#[cfg(test)]
mod tests {
    use super::is_build_script;

    #[test]
    fn builds_are_known_by_the_name_of_the_file() {
        for path in [
            "package.json",
            "a/b/Makefile",
            "Cargo.toml",
            "crates/x/build.rs",
            "web/vite.config.ts",
            "Dockerfile.dev",
            "gradle/wrapper/gradle-wrapper.properties",
            "lib/x.gemspec",
        ] {
            assert!(is_build_script(path), "{path}");
        }
        for path in [
            "src/main.rs",
            "docs/Makefile.md",
            "package.json.bak",
            "a/build",
            "Cargo.lock",
        ] {
            assert!(!is_build_script(path), "{path}");
        }
    }
}
