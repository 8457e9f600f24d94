plugins {
    id("com.android.application")
    id("com.chaquo.python")
}

val repository = rootDir.parentFile
val pythonFolder = layout.buildDirectory.dir("edgespec/python")
val assetsFolder = layout.buildDirectory.dir("edgespec/assets")

android {
    namespace = "org.edgespec.demo"
    compileSdk = 36

    defaultConfig {
        applicationId = "org.edgespec.demo"
        minSdk = 24
        targetSdk = 36
        versionCode = 1
        versionName = "0.1.0"
        ndk {
            abiFilters += listOf("arm64-v8a", "x86_64")
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }

    buildTypes {
        release {
            isMinifyEnabled = false
            signingConfig = signingConfigs.getByName("debug")
        }
    }

    sourceSets {
        getByName("main") {
            assets.srcDir(assetsFolder)
        }
    }

    packaging {
        jniLibs {
            // ONNX Runtime is called from Python through its C API; its Java half stays out.
            excludes += "**/libonnxruntime4j_jni.so"
        }
    }
}

chaquopy {
    defaultConfig {
        version = "3.13"
        pip {
            install("numpy")
            install("jinja2")
        }
    }
    sourceSets {
        getByName("main") {
            srcDir(pythonFolder)
        }
    }
}

dependencies {
    implementation("com.microsoft.onnxruntime:onnxruntime-android:1.29.0")
}

// The package as it is installed by pip, without the exporter and the command line.
val gatherPython = tasks.register<Sync>("gatherPython") {
    into(pythonFolder)
    from(repository.resolve("edgespec")) {
        into("edgespec")
        include("*.py")
        exclude("__main__.py")
    }
    from(repository.resolve("runtime")) {
        into("edgespec/runtime")
        include("**/*.py")
    }
    from(rootDir.resolve("demo")) {
        into("edgespec/demo")
        include("*.py")
        exclude("server.py", "page.py")
    }
}

val gatherAssets = tasks.register<Sync>("gatherAssets") {
    into(assetsFolder)
    from(rootDir.resolve("demo/page.html"))
}

// Chaquopy merges the Python sources, the Android plugin the assets and checks both; all of these read what is gathered.
tasks.configureEach {
    if (name.endsWith("PythonSources")) dependsOn(gatherPython)
    if (name == "preBuild" || name.endsWith("Assets") && name.startsWith("merge")) dependsOn(gatherPython, gatherAssets)
}
