package org.edgespec.demo;

import android.app.Application;
import android.net.Uri;
import android.os.Handler;
import android.os.Looper;
import android.util.Log;
import android.webkit.WebView;

import com.chaquo.python.PyObject;
import com.chaquo.python.Python;
import com.chaquo.python.android.AndroidPlatform;

import org.json.JSONException;
import org.json.JSONObject;

import java.io.File;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Holds the Python service, which outlives the activity: a rotation makes a new page and not a new engine.
 *
 * <p>Python is started and spoken to on one thread of its own. Events come from its threads and go to the page on the main thread.
 */
public final class DemoApplication extends Application {
    private static final String TAG = "edgespec";

    private final Handler main = new Handler(Looper.getMainLooper());
    private final ExecutorService python = Executors.newSingleThreadExecutor();
    private WebView page;
    private PyObject module;
    private PyObject service;

    @Override
    public void onCreate() {
        super.onCreate();
        python.execute(new Runnable() {
            @Override
            public void run() {
                start();
            }
        });
    }

    /** The page that events go to from now on; null for none. Called on the main thread. */
    void setPage(WebView page) {
        this.page = page;
    }

    /** A command of the page. */
    void receive(final String command) {
        call(new Runnable() {
            @Override
            public void run() {
                service.callAttr("receive", command);
            }
        });
    }

    /** The folder that the system's picker gave. */
    void importFrom(final Uri tree) {
        call(new Runnable() {
            @Override
            public void run() {
                PickedFolder folder = new PickedFolder(getContentResolver(), tree);
                module.callAttr("import_picked", service, folder, folder.name());
            }
        });
    }

    /** Write the conversation, since the process may be killed from here on. */
    void save() {
        call(new Runnable() {
            @Override
            public void run() {
                service.callAttr("save");
            }
        });
    }

    @Override
    public void onTrimMemory(int level) {
        super.onTrimMemory(level);
        // Being out of sight is no shortage; the engine is what the user comes back to.
        if (level == TRIM_MEMORY_UI_HIDDEN) {
            return;
        }
        call(new Runnable() {
            @Override
            public void run() {
                service.callAttr("trim");
            }
        });
    }

    /** An event of the service, in JSON. Called by Python, from any thread. */
    public void onEvent(final String event) {
        main.post(new Runnable() {
            @Override
            public void run() {
                if (page != null) {
                    page.evaluateJavascript("receive(" + event + ")", null);
                }
            }
        });
    }

    private void start() {
        try {
            // Python then finds the library by its name, wherever the system has put it.
            System.loadLibrary("onnxruntime");
            Python.start(new AndroidPlatform(this));
            File external = getExternalFilesDir(null);
            String files = getFilesDir().getPath();
            module = Python.getInstance().getModule("edgespec.demo.android");
            service = module.callAttr("start", files, external == null ? files : external.getPath(), getCacheDir().getPath(), this);
        } catch (Throwable error) {
            fail("The app could not start its engine on this device.", error);
        }
    }

    private void call(final Runnable action) {
        python.execute(new Runnable() {
            @Override
            public void run() {
                if (service == null) {
                    fail("The engine is not running. Close the app and open it again.", null);
                    return;
                }
                try {
                    action.run();
                } catch (Throwable error) {
                    fail("Something unexpected happened; the log has the details.", error);
                }
            }
        });
    }

    private void fail(String text, Throwable error) {
        Log.e(TAG, text, error);
        try {
            onEvent(new JSONObject().put("type", "error").put("text", text).toString());
        } catch (JSONException impossible) {
            Log.e(TAG, "no JSON", impossible);
        }
    }
}
